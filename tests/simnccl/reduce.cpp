// SPDX-License-Identifier: BSD-3-Clause
// Reductions, one after the other in the order of ranks.
#include "simnccl.h"

#include <algorithm>
#include <cstring>

namespace simnccl {

size_t
type_size(int type)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < 12 ? sizes[type] : 0;
}

bool
reduce_knows(int type, int op)
{
    return op >= ncclSum && op <= ncclAvg
           && (type <= ncclUint64 || type == ncclFloat32
               || type == ncclFloat64);
}

template <typename T>
static void
fold_in(T *sum, const char *with, size_t count, int op)
{
    for (size_t i = 0; i < count; i++) {
        T x;
        memcpy(&x, with + i * sizeof x, sizeof x);
        sum[i] = op == ncclProd  ? sum[i] * x
                 : op == ncclMax ? std::max(sum[i], x)
                 : op == ncclMin ? std::min(sum[i], x)
                                 : sum[i] + x;
    }
}

template <typename T>
static void
all(Task &task, const Fold &fold, int rank, int ranks)
{
    size_t count = fold.desc.count, bytes = count * sizeof(T);
    const char *others = task.at(fold.others);
    std::vector<T> sum(count);
    for (int i = 0; i < ranks; i++) {
        const char *with = i == rank ? task.at(fold.from) : others + i * bytes;
        if (i == 0)
            memcpy((void *)sum.data(), with, bytes);
        else
            fold_in(sum.data(), with, count, fold.desc.op);
    }
    for (T &x : sum)
        x = fold.desc.op == ncclAvg ? (T)(x / (T)ranks) : x;
    memcpy(task.at(fold.to), sum.data(), bytes);
}

void
reduce(Task &task, const Fold &fold, int rank, int ranks)
{
    static const decltype(&all<float>) by_type[] = {
        all<int8_t>,   all<uint8_t>, all<int32_t>, all<uint32_t>, all<int64_t>,
        all<uint64_t>, nullptr,      all<float>,   all<double>,
    };
    by_type[fold.desc.type](task, fold, rank, ranks);
}

} // namespace simnccl
