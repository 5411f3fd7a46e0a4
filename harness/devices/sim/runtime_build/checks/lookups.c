/* Part of the library of operators that do nothing: torch_npu finds them.
 *
 * torch_npu looks its operators up in a library that some releases open when they are imported, before this one exists
 * (2.9.0 does). So its calls of dlsym are led here: a name that its own library lacks is looked up in this one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIM_API __attribute__((visibility("default")))

#if defined(__x86_64__)
enum { SLOT = R_X86_64_JUMP_SLOT, DATA = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { SLOT = R_AARCH64_JUMP_SLOT, DATA = R_AARCH64_GLOB_DAT };
#else
enum { SLOT = -1, DATA = -1 };
#endif

static void *these;

static long succeed(void) { return 0; }

/* An operator whose name stands in no text of torch_npu, because the compiler wrote it as numbers, exists, too. */
static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found && strncmp(name, "acl", 3) == 0) found = dlsym(these, name);
    return found || strncmp(name, "aclnn", 5) != 0 ? found : (void *)succeed;
}

typedef struct {
    uintptr_t symbols, strings, tables[2];
    size_t sizes[2];
} dynamic;

/* The loader has added the base to these addresses, except in some libraries of the system. */
static uintptr_t address(const struct dl_phdr_info *info, uintptr_t value) {
    return value < info->dlpi_addr ? info->dlpi_addr + value : value;
}

static dynamic read_dynamic(const struct dl_phdr_info *info, const ElfW(Dyn) *entry) {
    dynamic found = {0};
    for (; entry->d_tag != DT_NULL; entry++) {
        uintptr_t value = entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB) found.symbols = address(info, value);
        if (entry->d_tag == DT_STRTAB) found.strings = address(info, value);
        if (entry->d_tag == DT_JMPREL) found.tables[0] = address(info, value);
        if (entry->d_tag == DT_RELA) found.tables[1] = address(info, value);
        if (entry->d_tag == DT_PLTRELSZ) found.sizes[0] = value;
        if (entry->d_tag == DT_RELASZ) found.sizes[1] = value;
    }
    return found;
}

static void replace(void **slot) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)slot & ~(page - 1);
    if (mprotect((void *)start, page, PROT_READ | PROT_WRITE) == 0) *slot = (void *)find;
}

static int lead_here(struct dl_phdr_info *info, size_t size, void *count) {
    (void)size;
    if (!strstr(info->dlpi_name, "torch_npu")) return 0;
    for (int segment = 0; segment < info->dlpi_phnum; segment++) {
        if (info->dlpi_phdr[segment].p_type != PT_DYNAMIC) continue;
        dynamic found = read_dynamic(info, (const void *)(info->dlpi_addr + info->dlpi_phdr[segment].p_vaddr));
        for (int table = 0; table < 2; table++) {
            const ElfW(Rela) *entry = (const void *)found.tables[table];
            for (size_t left = entry ? found.sizes[table] / sizeof *entry : 0; left; left--, entry++) {
                uint32_t type = (uint32_t)ELF64_R_TYPE(entry->r_info);
                if (type != (uint32_t)SLOT && type != (uint32_t)DATA) continue;
                const ElfW(Sym) *symbol = (const ElfW(Sym) *)found.symbols + ELF64_R_SYM(entry->r_info);
                if (strcmp((const char *)found.strings + symbol->st_name, "dlsym") != 0) continue;
                replace((void **)(info->dlpi_addr + entry->r_offset));
                ++*(int *)count;
            }
        }
    }
    return 0;
}

/* Lead the lookups of torch_npu here, and return in how many places that was possible. */
SIM_API int npu_sim_lead_lookups_here(void) {
    Dl_info own;
    int count = 0;
    if (!dladdr((void *)find, &own)) return 0;
    these = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (these) dl_iterate_phdr(lead_here, &count);
    return count;
}
