// SPDX-License-Identifier: BSD-3-Clause
// Tables of the Python objects that the module keeps (wm_state_t of module.h).
#ifndef WM_PYTHON_CORE_KEPT_H
#define WM_PYTHON_CORE_KEPT_H

// Names that messages ask other libraries' objects for.
#define WM_PY_NAMES(X)                                                        \
    X(cuda_array_interface, "__cuda_array_interface__")                       \
    X(array_interface, "__array_interface__")                                 \
    X(dlpack, "__dlpack__")                                                   \
    X(typestr, "typestr")                                                     \
    X(data, "data")                                                           \
    X(shape, "shape")                                                         \
    X(strides, "strides")                                                     \
    X(mask, "mask")                                                           \
    X(descr, "descr")                                                         \
    X(version, "version")                                                     \
    X(stream, "stream")                                                       \
    X(ptr, "ptr")                                                             \
    X(dtype, "dtype")                                                         \
    X(c_contiguous, "_c_contiguous")                                          \
    X(writeable, "writeable")                                                 \
    X(device, "device")                                                       \
    X(cuda_stream, "cuda_stream")                                             \
    X(is_conj, "is_conj")                                                     \
    X(is_neg, "is_neg")

// Objects of ours, of mpi4py, and of libraries imported at first use.
#define WM_PY_OBJECTS(X)                                                      \
    X(cuda_error)       /* wm.CudaError(RuntimeError) */                      \
    X(memory_error)     /* wm.OutOfMemoryError(CudaError, MemoryError) */     \
    X(staging_error)    /* wm.StagingError(RuntimeError) */                   \
    X(mpi_exception)    /* MPI.Exception */                                   \
    X(mpi_in_place)     /* MPI.IN_PLACE */                                    \
    X(mpi_bottom)       /* MPI.BOTTOM */                                      \
    X(mpi_memory)       /* MPI.memory */                                      \
    X(mpi_methods)      /* of mpi4py's types, as they were: a dict */         \
    X(numpy_dtype)      /* numpy.dtype */                                     \
    X(numpy_array_type) /* numpy.ndarray */                                   \
    X(cupy_stream)      /* cupy.cuda.get_current_stream */

#endif
