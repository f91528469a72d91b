// SPDX-License-Identifier: BSD-3-Clause
// Settings, failures, counts.
#include "simucx.h"

#include "faults.h"

#include <cstdarg>

namespace simucx {

struct Counter {
    long calls = 0, fail_at = 0;
    int code = 0;
};

static auto &mu = *new std::mutex;
static auto &counters = *new std::map<std::string, Counter>;
static auto &lives = *new std::map<std::string, long>;

static void
arm(const char *name, long n, int code)
{
    Counter &counter = counters[name];
    counter.fail_at = n > 0 ? counter.calls + n : n;
    counter.code = code != 0 ? code : UCS_ERR_IO_ERROR;
}

static bool
arm_by_environment()
{
    if (sim::faults_are_here("SIMUCX_FAIL_RANK"))
        sim::faults_read("SIMUCX_FAIL", arm);
    return true;
}

ucs_status_t
count_call(const char *name)
{
    std::lock_guard<std::mutex> guard(mu);
    static bool armed = arm_by_environment();
    (void)armed;
    Counter &counter = counters[name];
    counter.calls++;
    bool fails = counter.fail_at == counter.calls || counter.fail_at < 0;
    return fails ? (ucs_status_t)sim::fault_happens(counter.code) : UCS_OK;
}

void
refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("simucx: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    abort();
}

std::string
setting(const char *name, const char *standard)
{
    const char *text = getenv(name);
    return text != nullptr ? text : standard;
}

void
live(const char *kind, int change)
{
    std::lock_guard<std::mutex> guard(mu);
    lives[kind] += change;
}

long
living(const char *kind)
{
    std::lock_guard<std::mutex> guard(mu);
    return lives[kind];
}

} // namespace simucx

using namespace simucx;

UCP_API long
simucx_live(const char *kind)
{
    return living(kind);
}

UCP_API long
simucx_calls(const char *name)
{
    std::lock_guard<std::mutex> guard(simucx::mu);
    return counters[name].calls;
}

UCP_API void
simucx_fail(const char *name, long n, int code)
{
    count_call("");
    std::lock_guard<std::mutex> guard(simucx::mu);
    arm(name, n, code);
}

UCP_API void
ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    *major = *minor = *release = 0;
    sscanf(setting("SIMUCX_VERSION", "1.18.0").c_str(), "%u.%u.%u", major,
           minor, release);
}

UCP_API const char *
ucs_status_string(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return "Success";
    case UCS_INPROGRESS:
        return "Operation in progress";
    case UCS_ERR_IO_ERROR:
        return "Input/output error";
    case UCS_ERR_UNREACHABLE:
        return "Destination is unreachable";
    case UCS_ERR_MESSAGE_TRUNCATED:
        return "Message truncated";
    case UCS_ERR_CANCELED:
        return "Request canceled";
    default:
        return "Unknown error";
    }
}
