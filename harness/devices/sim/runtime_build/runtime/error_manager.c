/* What compiled extensions ask of CANN's logging while they load: C++ functions by their mangled names. The stubs' number
 * would be followed as an address where a reference is expected, and weak functions are called without a look. */
#include "sim.h"

/* A std::string of the old ABI is a pointer to characters with length, capacity and reference count in front of them. */
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

/* CheckLogLevel(int, int): no level is logged. DlogRecord(int, int, const char *, ...) */
SIM_API int _Z13CheckLogLevelii(int module, int level) { (void)module; (void)level; return 0; }
SIM_API void _Z10DlogRecordiiPKcz(int module, int level, const char *format, ...) { (void)module; (void)level; (void)format; TRACE; }
