/* C++ functions of CANN's logging that compiled extensions call while they load, by their mangled names. The generated stubs
 * are not sufficient: they return an error number, which the caller of GetLogHeader would use as an address. */
#include "sim.h"

/* A std::string of the old ABI is a pointer to its characters. Length, capacity and reference count precede them. */
static struct {
    size_t length, capacity;
    long references;
    char text[8];
} header;

SIM_API void *_ZN12ErrorManager11GetInstanceEv(void) { TRACE; return &header; }

SIM_API const void *_ZN12ErrorManager12GetLogHeaderEv(void) {
    static const char *string = header.text;
    TRACE;
    return &string;
}

/* CheckLogLevel(int, int) returns that no level is logged. DlogRecord(int, int, const char *, ...) ignores its arguments. */
SIM_API int _Z13CheckLogLevelii(int module, int level) { (void)module; (void)level; return 0; }
SIM_API void _Z10DlogRecordiiPKcz(int module, int level, const char *format, ...) { (void)module; (void)level; (void)format; TRACE; }
