// SPDX-License-Identifier: BSD-3-Clause
// Memory: what the driver knows of it, registrations, copies.
#include "simucx.h"

#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>

namespace simucx {

struct Driver {
    CUresult (*attribute)(unsigned, CUpointer_attribute *, void **,
                          CUdeviceptr);
    CUresult (*to_host)(void *, CUdeviceptr, size_t);
    CUresult (*to_device)(CUdeviceptr, const void *, size_t);
    CUresult (*context)(CUcontext *);
};

static Driver *
find_driver()
{
    const char *path = getenv("WARPMPI_CUDA_DRIVER");
    void *library = path ? dlopen(path, RTLD_NOW) : nullptr;
    static Driver found;
    struct {
        const char *name;
        void *function;
    } rows[] = {
        {"cuPointerGetAttributes", &found.attribute},
        {"cuMemcpyDtoH_v2", &found.to_host},
        {"cuMemcpyHtoD_v2", &found.to_device},
        {"cuCtxGetCurrent", &found.context},
    };
    for (auto &row : rows) {
        void *function = library ? dlsym(library, row.name) : nullptr;
        if (function == nullptr)
            return nullptr;
        memcpy(row.function, &function, sizeof function);
    }
    return &found;
}

static const Driver *
driver()
{
    static Driver *found = find_driver();
    return found;
}

bool
sees_cuda()
{
    return driver() != nullptr && setting("SIMUCX_CUDA", "1") != "0";
}

// Returns the type of the memory that the driver knows, 0 if it knows none;
// and the buffer id.
static uint64_t
ask(const void *at, uint64_t *buffer_id)
{
    uint64_t type = 0;
    *buffer_id = 0;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_BUFFER_ID};
    void *data[] = {&type, buffer_id};
    if (driver() != nullptr)
        driver()->attribute(2, attributes, data, (CUdeviceptr)at);
    return type;
}

void
check_memory(const Memory &memory)
{
    uint64_t id, type = memory.size > 0 ? ask(memory.at, &id) : 0;
    bool device = type == CU_MEMORYTYPE_DEVICE;
    if (memory.size > 0 && device != (memory.type == CUDA))
        refuse("%p is %s memory, and the operation says %s", memory.at,
               device ? "device" : "host",
               memory.type == CUDA ? "device" : "host");
    if (memory.mapping == nullptr)
        return;
    std::lock_guard<std::mutex> guard(memory.context->mu);
    const Mapping *mapping = memory.mapping;
    uintptr_t at = (uintptr_t)memory.at;
    if (memory.context->mappings.count(memory.mapping) == 0)
        refuse("the registration of %p has ended", memory.at);
    if (at < mapping->base || at + memory.size > mapping->base + mapping->size)
        refuse("%p is not within its registration", memory.at);
    if (mapping->buffer_id != id)
        refuse("%p is registered as memory that was freed", memory.at);
}

Memory
keyed_memory(Context *context, uint64_t mapping, uint64_t at, size_t size)
{
    Memory memory = {context, (char *)at, size, HOST, (Mapping *)mapping};
    uint64_t id, type = size > 0 ? ask(memory.at, &id) : 0;
    if (type == CU_MEMORYTYPE_DEVICE)
        memory.type = CUDA;
    check_memory(memory);
    return memory;
}

static void
need_context()
{
    CUcontext current = nullptr;
    if (driver()->context(&current) != CUDA_SUCCESS || current == nullptr)
        refuse("no context of CUDA is current");
}

void
read_memory(const Memory &memory, size_t offset, void *into, size_t size)
{
    check_memory(memory);
    if (memory.type != CUDA) {
        memcpy(into, memory.at + offset, size);
        return;
    }
    need_context();
    if (driver()->to_host(into, (CUdeviceptr)(memory.at + offset), size))
        refuse("device memory cannot be read");
}

void
write_memory(const Memory &memory, size_t offset, const void *from,
             size_t size)
{
    check_memory(memory);
    if (memory.type != CUDA) {
        memcpy(memory.at + offset, from, size);
        return;
    }
    need_context();
    if (driver()->to_device((CUdeviceptr)(memory.at + offset), from, size))
        refuse("device memory cannot be written");
}

} // namespace simucx

using namespace simucx;

UCP_API ucs_status_t
ucp_mem_map(Context *context, const ucp_mem_map_params_t *params,
            Mapping **mapping)
{
    ucs_status_t failed = count_call("mem_map");
    if (failed != UCS_OK)
        return failed;
    if ((params->field_mask & 3) != 3)
        return UCS_ERR_INVALID_PARAM;
    uint64_t id;
    if (ask(params->address, &id) == CU_MEMORYTYPE_DEVICE)
        need_context();
    *mapping = new Mapping{(uintptr_t)params->address, params->length, id};
    std::lock_guard<std::mutex> guard(context->mu);
    context->mappings.insert(*mapping);
    live("mappings", 1);
    return UCS_OK;
}

UCP_API ucs_status_t
ucp_mem_unmap(Context *context, Mapping *mapping)
{
    count_call("mem_unmap");
    std::lock_guard<std::mutex> guard(context->mu);
    uint64_t id;
    if (context->mappings.erase(mapping) == 0)
        refuse("a registration ends twice");
    // The address may be free by now, but not if the memory was ours.
    if (ask((void *)mapping->base, &id) == CU_MEMORYTYPE_DEVICE)
        need_context();
    if (id != mapping->buffer_id)
        count_call("late");
    live("mappings", -1);
    return UCS_OK; // the handle stays, so that no other one is at its place
}

UCP_API ucs_status_t
ucp_config_read(const char *, const char *, void **config)
{
    *config = new char;
    return count_call("config_read");
}

UCP_API ucs_status_t
ucp_config_modify(void *, const char *name, const char *value)
{
    count_call((std::string(name) + "=" + value).c_str());
    return count_call("config_modify");
}

UCP_API void
ucp_config_release(void *config)
{
    delete (char *)config;
}

UCP_API ucs_status_t
ucp_init_version(unsigned, unsigned, const ucp_params_t *params, const void *,
                 Context **context)
{
    ucs_status_t failed = count_call("init");
    if (failed != UCS_OK)
        return failed;
    if ((params->features & 1) == 0)
        return UCS_ERR_INVALID_PARAM;
    *context = new Context{{}, {}, params->features};
    live("contexts", 1);
    return UCS_OK;
}

UCP_API ucs_status_t
ucp_context_query(Context *, ucp_context_attr_t *attr)
{
    attr->memory_types = 1 << HOST | (sees_cuda() ? 1 << CUDA : 0);
    return count_call("context_query");
}

UCP_API void
ucp_context_print_info(Context *, FILE *file)
{
    std::string list = setting("SIMUCX_TRANSPORTS", "tcp");
    int number = 0;
    fprintf(file, "#\n# UCP context\n#\n#     component 0  :  tcp\n#\n");
    for (char *save, *item = strtok_r(list.data(), ",", &save);
         item != nullptr; item = strtok_r(nullptr, ",", &save))
        fprintf(file,
                "#      resource %d  :  md 0  dev 0  flags -- %s/sim%d\n",
                number, item, number),
            ++number;
}

UCP_API void
ucp_cleanup(Context *context)
{
    count_call("cleanup");
    if (!context->mappings.empty())
        refuse("%zu registrations are left", context->mappings.size());
    live("contexts", -1);
    delete context;
}
