// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/capture.h"

static int
find_graph(int device, CUstream stream, CUgraph *graph, wm_error_t *err)
{
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    *graph = NULL;
    int code = WM_CU_ON(device, err, StreamGetCaptureInfo, stream, &status,
                        &id, graph, NULL, NULL);
    if (code == 0
        && (status != CU_STREAM_CAPTURE_STATUS_ACTIVE || *graph == NULL))
        code = wm_error_set(err, WM_ERR_STATE, 0,
                            "the stream is not being captured into a graph");
    return code;
}

int
wm_capture_keep(int device, CUstream stream, void *object,
                void (*released)(void *object), wm_error_t *err)
{
    CUgraph graph;
    CUuserObject keeper = NULL;
    int code = find_graph(device, stream, &graph, err);
    if (code == 0)
        code = WM_CU_ON(device, err, UserObjectCreate, &keeper, object,
                        released, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (code < 0) {
        released(object);
        return code;
    }
    code = WM_CU_ON(device, err, GraphRetainUserObject, graph, keeper, 1,
                    CU_GRAPH_USER_OBJECT_MOVE);
    if (code < 0) // calls released()
        (void)!WM_CU_ON(device, NULL, UserObjectRelease, keeper, 1);
    return code;
}
