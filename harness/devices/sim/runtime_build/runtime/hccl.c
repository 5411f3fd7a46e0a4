/* HCCL: communicators and collectives over TCP connections between all ranks, with the semantics of hccl.h.
 *
 * torch_npu's ProcessGroupHCCL runs on it: its checks, streams, watchdog and errors are those of the wheel. Every rank computes
 * a reduction in the order of the ranks, in the type of the data, so all ranks get equal bits. Each message says what it
 * belongs to; ranks that call different collectives, or the same with other counts, fail as they do with HCCL (EI0005).
 *
 *   HCCL_IF_IP            address that other hosts connect to (default: the first that is not the loopback)
 *   HCCL_CONNECT_TIMEOUT  seconds until all ranks must have called the initialisation (default 120)
 *   HCCL_EXEC_TIMEOUT     seconds that a rank waits for the others in a collective (default 1836)
 */
#define _GNU_SOURCE
#include "sim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    HCCL_OK = 0,
    HCCL_E_PARA = 1,
    HCCL_E_PTR = 2,
    HCCL_E_MEMORY = 3,
    HCCL_E_NOT_SUPPORT = 5,
    HCCL_E_SYSCALL = 8,
    HCCL_E_TIMEOUT = 9,
    HCCL_E_TCP_CONNECT = 11,
    HCCL_E_REMOTE = 21,
};
enum { SUM, PROD, MAX, MIN };
enum { INT8, INT16, INT32, FP16, FP32, INT64, UINT64, UINT8, UINT16, UINT32, FP64, BF16, TYPES };
static const uint8_t type_bytes[TYPES] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2};

#define NAME_LENGTH 128
#define ROOT_INFO_BYTES 4108
#define CONFIG_NAME_OFFSET 32
#define DESTROY_SECONDS 10

typedef struct {
    char address[INET_ADDRSTRLEN];
    uint16_t port;
} endpoint;

typedef struct {
    uint64_t id;
    endpoint root;
} root_info;

/* Precedes the bytes of every message. */
typedef struct {
    uint32_t kind, type;
    uint64_t bytes;
    uint64_t number;
} header;

typedef struct communicator {
    uint32_t rank, size;
    int *links;
    char name[NAME_LENGTH];
    atomic_int error;
    atomic_int references;
    uint64_t collectives, *sent, *received;
    struct communicator *next;
} communicator;

/* ---- sockets ---- */

static int seconds_of(const char *variable, int fallback) {
    const char *value = getenv(variable);
    int seconds = value ? atoi(value) : 0;
    return seconds > 0 ? seconds : fallback;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void own_address(char *text) {
    const char *given = getenv("HCCL_IF_IP");
    struct in_addr checked;
    strcpy(text, "127.0.0.1");
    if (given && inet_pton(AF_INET, given, &checked) == 1) {
        snprintf(text, INET_ADDRSTRLEN, "%s", given);
        return;
    }
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list)) return;
    for (struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
        if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_INET) continue;
        if ((entry->ifa_flags & IFF_LOOPBACK) || !(entry->ifa_flags & IFF_UP)) continue;
        inet_ntop(AF_INET, &((struct sockaddr_in *)entry->ifa_addr)->sin_addr, text, INET_ADDRSTRLEN);
        break;
    }
    freeifaddrs(list);
}

static int listen_on(endpoint *at) {
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t length = sizeof address;
    if (server < 0) return -1;
    if (bind(server, (struct sockaddr *)&address, length) || listen(server, 1024) ||
        getsockname(server, (struct sockaddr *)&address, &length)) {
        close(server);
        return -1;
    }
    own_address(at->address);
    at->port = ntohs(address.sin_port);
    return server;
}

static int connect_to(const endpoint *at) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(at->port)};
    int link = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link < 0) return -1;
    if (inet_pton(AF_INET, at->address, &address.sin_addr) != 1 || connect(link, (struct sockaddr *)&address, sizeof address)) {
        close(link);
        return -1;
    }
    return link;
}

static int accept_from(int server, double until) {
    struct pollfd wait = {server, POLLIN, 0};
    double left = until - now();
    if (left <= 0 || poll(&wait, 1, (int)(left * 1e3) + 1) <= 0) return -1;
    return accept4(server, NULL, NULL, SOCK_CLOEXEC);
}

static int whole(int link, void *data, size_t bytes, int sends, double until) {
    char *at = data;
    while (bytes) {
        struct pollfd wait = {link, sends ? POLLOUT : POLLIN, 0};
        double left = until - now();
        if (left <= 0 || poll(&wait, 1, (int)(left * 1e3) + 1) <= 0) return 0;
        ssize_t done = sends ? send(link, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(link, at, bytes, MSG_DONTWAIT);
        if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR)) return 0;
        if (done > 0) at += done, bytes -= (size_t)done;
    }
    return 1;
}

/* ---- initialisation ---- */

typedef struct listener {
    uint64_t id;
    int server;
    struct listener *next;
} listener;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static listener *listeners;
/* Those that were not destroyed. */
static communicator *communicators;

SIM_API int HcclGetRootInfo(void *info) {
    TRACE;
    if (!info) return HCCL_E_PTR;
    root_info root = {0};
    listener *entry = malloc(sizeof *entry);
    if (!entry) return HCCL_E_MEMORY;
    int server = listen_on(&root.root);
    if (server < 0 || getrandom(&root.id, sizeof root.id, 0) != sizeof root.id) {
        free(entry);
        return HCCL_E_SYSCALL;
    }
    pthread_mutex_lock(&lock);
    *entry = (listener){root.id, server, listeners};
    listeners = entry;
    pthread_mutex_unlock(&lock);
    memset(info, 0, ROOT_INFO_BYTES);
    memcpy(info, &root, sizeof root);
    return HCCL_OK;
}

static int take_listener(uint64_t id) {
    int server = -1;
    pthread_mutex_lock(&lock);
    for (listener **entry = &listeners; *entry; entry = &(*entry)->next) {
        if ((*entry)->id != id) continue;
        listener *found = *entry;
        server = found->server;
        *entry = found->next;
        free(found);
        break;
    }
    pthread_mutex_unlock(&lock);
    return server;
}

typedef struct {
    uint64_t id;
    uint32_t rank, size;
    endpoint at;
} hello;

/* The root learns where every rank listens. Fails if a rank is missing, called twice or with another size. */
static int gather_endpoints(int server, endpoint *table, const hello *own, double until) {
    int *guests = calloc(own->size, sizeof *guests);
    int result = guests ? HCCL_OK : HCCL_E_MEMORY;
    table[own->rank] = own->at;
    for (uint32_t seen = 1; !result && seen < own->size; seen++) {
        hello guest;
        int link = accept_from(server, until);
        if (link < 0) result = HCCL_E_TIMEOUT;
        else if (!whole(link, &guest, sizeof guest, 0, until)) result = HCCL_E_TCP_CONNECT;
        else if (guest.id != own->id || guest.size != own->size || guest.rank >= own->size || guest.rank == own->rank || guests[guest.rank])
            result = HCCL_E_PARA;
        if (result) {
            if (link >= 0) close(link);
            break;
        }
        table[guest.rank] = guest.at;
        guests[guest.rank] = link;
    }
    for (uint32_t rank = 0; guests && rank < own->size; rank++) {
        if (!guests[rank]) continue;
        if (!result && !whole(guests[rank], table, own->size * sizeof *table, 1, until)) result = HCCL_E_TCP_CONNECT;
        close(guests[rank]);
    }
    free(guests);
    return result;
}

static int fetch_endpoints(const endpoint *root, endpoint *table, const hello *own, double until) {
    int link = connect_to(root);
    hello copy = *own;
    if (link < 0) return HCCL_E_TCP_CONNECT;
    int done = whole(link, &copy, sizeof copy, 1, until) && whole(link, table, own->size * sizeof *table, 0, until);
    close(link);
    return done ? HCCL_OK : now() >= until ? HCCL_E_TIMEOUT : HCCL_E_TCP_CONNECT;
}

/* Every rank connects to the ranks below it and accepts those above. */
static int link_ranks(communicator *comm, int server, const endpoint *table, uint64_t id, double until) {
    struct { uint64_t id; uint32_t rank; } greeting = {id, comm->rank};
    int option = 1;
    for (uint32_t rank = 0; rank < comm->rank; rank++) {
        int link = connect_to(&table[rank]);
        if (link < 0 || !whole(link, &greeting, sizeof greeting, 1, until)) return HCCL_E_TCP_CONNECT;
        comm->links[rank] = link;
    }
    for (uint32_t rank = comm->rank + 1; rank < comm->size; rank++) {
        int link = accept_from(server, until);
        if (link < 0) return HCCL_E_TIMEOUT;
        if (!whole(link, &greeting, sizeof greeting, 0, until) || greeting.id != id || greeting.rank >= comm->size) return HCCL_E_TCP_CONNECT;
        comm->links[greeting.rank] = link;
    }
    for (uint32_t rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank) setsockopt(comm->links[rank], IPPROTO_TCP, TCP_NODELAY, &option, sizeof option);
    return HCCL_OK;
}

static void release(communicator *comm) {
    if (atomic_fetch_sub(&comm->references, 1) > 1) return;
    for (uint32_t rank = 0; rank < comm->size; rank++)
        if (comm->links[rank] >= 0) close(comm->links[rank]);
    free(comm->links);
    free(comm->sent);
    free(comm->received);
    free(comm);
}

static int join(uint32_t size, const root_info *root, communicator *comm) {
    double until = now() + seconds_of("HCCL_CONNECT_TIMEOUT", 120);
    hello own = {.id = root->id, .rank = comm->rank, .size = size};
    endpoint *table = calloc(size, sizeof *table);
    int rendezvous = take_listener(root->id), server = listen_on(&own.at);
    int result = !table ? HCCL_E_MEMORY : server < 0 ? HCCL_E_SYSCALL : HCCL_OK;
    if (!result && size > 1)
        result = rendezvous >= 0 ? gather_endpoints(rendezvous, table, &own, until) : fetch_endpoints(&root->root, table, &own, until);
    if (!result && size > 1) result = link_ranks(comm, server, table, root->id, until);
    if (rendezvous >= 0) close(rendezvous);
    if (server >= 0) close(server);
    free(table);
    return result;
}

/* A communicator without links; NULL without memory. */
static communicator *allocate(uint32_t rank, uint32_t size) {
    communicator *comm = calloc(1, sizeof *comm);
    if (!comm) return NULL;
    *comm = (communicator){.rank = rank, .size = size};
    atomic_store(&comm->references, 1);
    comm->links = malloc(size * sizeof *comm->links);
    comm->sent = calloc(size, sizeof *comm->sent);
    comm->received = calloc(size, sizeof *comm->received);
    if (!comm->links || !comm->sent || !comm->received) {
        comm->size = 0;
        release(comm);
        return NULL;
    }
    memset(comm->links, -1, size * sizeof *comm->links);
    return comm;
}

static void publish(communicator *comm) {
    pthread_mutex_lock(&lock);
    comm->next = communicators;
    communicators = comm;
    pthread_mutex_unlock(&lock);
}

SIM_API int HcclCommInitRootInfoConfig(uint32_t size, const void *info, uint32_t rank, const void *config, void **out) {
    TRACE;
    if (!info || !out) return HCCL_E_PTR;
    if (!size || rank >= size) return HCCL_E_PARA;
    root_info root;
    memcpy(&root, info, sizeof root);
    communicator *comm = allocate(rank, size);
    if (!comm) return HCCL_E_MEMORY;
    const char *name = config && *(const size_t *)config > CONFIG_NAME_OFFSET ? (const char *)config + CONFIG_NAME_OFFSET : "";
    if (*name) snprintf(comm->name, sizeof comm->name, "%.*s", NAME_LENGTH - 1, name);
    else snprintf(comm->name, sizeof comm->name, "%s%%%u%%%llx", root.root.address, root.root.port, (unsigned long long)root.id);
    int result = join(size, &root, comm);
    if (result) {
        fprintf(stderr, "[npu-sim] HCCL: rank %u of %u could not connect to the other ranks (error %d)\n", rank, size, result);
        release(comm);
        return result;
    }
    publish(comm);
    *out = comm;
    return HCCL_OK;
}

/* One communicator for each device of this process, as torch.nn.DataParallel needs them. */
SIM_API int HcclCommInitAll(uint32_t size, const int32_t *devices, void **out) {
    TRACE;
    static atomic_int made;
    if (!devices || !out) return HCCL_E_PTR;
    if (!size) return HCCL_E_PARA;
    int number = atomic_fetch_add(&made, 1), result = HCCL_OK;
    communicator **all = calloc(size, sizeof *all);
    for (uint32_t rank = 0; all && rank < size && !result; rank++) {
        all[rank] = allocate(rank, size);
        if (!all[rank]) result = HCCL_E_MEMORY;
        else snprintf(all[rank]->name, sizeof all[rank]->name, "%d%%all%d", (int)getpid(), number);
        for (uint32_t peer = 0; peer < rank && !result; peer++) {
            int ends[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) result = HCCL_E_SYSCALL;
            else all[rank]->links[peer] = ends[0], all[peer]->links[rank] = ends[1];
        }
    }
    if (!all) return HCCL_E_MEMORY;
    for (uint32_t rank = 0; rank < size && all[rank]; rank++) {
        if (result) release(all[rank]);
        else publish(all[rank]), out[rank] = all[rank];
    }
    free(all);
    return result;
}

/* The communicator with this name, of which kernels with a collective get only the name; NULL if there is none. */
SIM_API void *npu_sim_communicator(const char *name) {
    pthread_mutex_lock(&lock);
    communicator *found = communicators;
    while (found && strcmp(found->name, name)) found = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

SIM_API int HcclCommInitRootInfo(uint32_t size, const void *info, uint32_t rank, void **out) {
    return HcclCommInitRootInfoConfig(size, info, rank, NULL, out);
}
/* Buffer size, determinism, name and expansion mode can be configured. */
SIM_API uint32_t HcclGetCommConfigCapability(void) { return 4; }
SIM_API int HcclGetCommName(void *handle, char *name) {
    if (!handle || !name) return HCCL_E_PTR;
    strcpy(name, ((communicator *)handle)->name);
    return HCCL_OK;
}
SIM_API int HcclGetRankSize(void *handle, uint32_t *size) {
    if (!handle || !size) return HCCL_E_PTR;
    *size = ((communicator *)handle)->size;
    return HCCL_OK;
}
SIM_API int HcclGetRankId(void *handle, uint32_t *rank) {
    if (!handle || !rank) return HCCL_E_PTR;
    *rank = ((communicator *)handle)->rank;
    return HCCL_OK;
}
SIM_API int HcclGetCommAsyncError(void *handle, int *error) {
    if (!handle || !error) return HCCL_E_PTR;
    *error = atomic_load(&((communicator *)handle)->error);
    return HCCL_OK;
}
SIM_API int HcclCommResume(void *handle) { TRACE; return handle ? HCCL_OK : HCCL_E_PTR; }
/* Submitted collectives may still finish. Those that wait for other ranks then fail; the last of them frees the communicator. */
SIM_API int HcclCommDestroy(void *handle) {
    TRACE;
    communicator *comm = handle;
    if (!comm) return HCCL_E_PTR;
    pthread_mutex_lock(&lock);
    communicator **place = &communicators;
    while (*place && *place != comm) place = &(*place)->next;
    if (*place) *place = comm->next;
    pthread_mutex_unlock(&lock);
    for (double until = now() + DESTROY_SECONDS; atomic_load(&comm->references) > 1 && now() < until;) usleep(1000);
    for (uint32_t rank = 0; rank < comm->size && atomic_load(&comm->references) > 1; rank++)
        if (comm->links[rank] >= 0) shutdown(comm->links[rank], SHUT_RDWR);
    release(comm);
    return HCCL_OK;
}
SIM_API int HcclSetConfig(int key, uint64_t value) { (void)key; (void)value; TRACE; return HCCL_OK; }
SIM_API int HcclGetConfig(int key, void *value) { (void)key; (void)value; TRACE; return HCCL_OK; }
SIM_API const char *HcclGetErrorString(int code) { return code ? "simulated HCCL error" : "no error"; }

/* ---- exchanges ---- */

typedef struct {
    uint32_t peer;
    int sends;
    void *data;
    uint64_t bytes;
    uint64_t moved;
    header head;
    int checked;
} transfer;

/* Moves what the socket takes or has. Returns an error, or HCCL_OK with *finished set when the transfer is complete. */
static int advance(communicator *comm, transfer *item, int *finished) {
    for (;;) {
        int in_header = item->moved < sizeof item->head;
        char *at = in_header ? (char *)&item->head + item->moved : (char *)item->data + (item->moved - sizeof item->head);
        uint64_t left = in_header ? sizeof item->head - item->moved : item->bytes + sizeof item->head - item->moved;
        if (!left) {
            *finished = 1;
            return HCCL_OK;
        }
        int link = comm->links[item->peer];
        ssize_t done = item->sends ? send(link, at, left, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(link, at, left, MSG_DONTWAIT);
        if (done < 0 && (errno == EAGAIN || errno == EINTR)) return HCCL_OK;
        if (done <= 0) return HCCL_E_REMOTE;
        item->moved += (uint64_t)done;
        if (item->sends || item->checked || item->moved < sizeof item->head) continue;
        item->checked = 1;
    }
}

static const char *const kinds[] = {"send/recv", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "reduce", "scatter", "all_to_all"};
enum { POINT_TO_POINT, ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, REDUCE, SCATTER, ALL_TO_ALL };

static int mismatch(const communicator *comm, uint32_t peer, const header *theirs, const header *own) {
    fprintf(stderr,
            "EI0005: [npu-sim] ranks %u and %u of communicator %s call different collectives: %s %llu of %llu bytes, "
            "%s %llu of %llu bytes\n",
            comm->rank, peer, comm->name, kinds[own->kind & 7], (unsigned long long)own->number, (unsigned long long)own->bytes,
            kinds[theirs->kind & 7], (unsigned long long)theirs->number, (unsigned long long)theirs->bytes);
    return HCCL_E_PARA;
}

/* Copies what a rank sends to itself: its first message goes to its first receiver, and so on. */
static void copy_to_self(const communicator *comm, const transfer *items, uint32_t count, int *done, uint32_t *left) {
    uint32_t receiver = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].peer != comm->rank || !items[i].sends) continue;
        while (items[receiver].peer != comm->rank || items[receiver].sends) receiver++;
        memcpy(items[receiver].data, items[i].data, items[i].bytes);
        done[i] = done[receiver++] = 1;
        *left -= 2;
    }
}

/* Whether each message that a rank sends to itself has a receiver of the same size, and each receiver a message. */
static int pairs_with_self(const communicator *comm, const transfer *items, uint32_t count) {
    uint32_t receiver = 0, open = 0;
    for (uint32_t i = 0; i < count; i++) open += items[i].peer == comm->rank && !items[i].sends;
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].peer != comm->rank || !items[i].sends) continue;
        if (!open--) return 0;
        while (items[receiver].peer != comm->rank || items[receiver].sends) receiver++;
        if (items[receiver++].bytes != items[i].bytes) return 0;
    }
    return !open;
}

/* Performs the transfers, in their order between each pair of ranks. expected: what the messages must be. */
static int exchange(communicator *comm, transfer *items, uint32_t count, uint32_t kind, uint32_t type) {
    double until = now() + seconds_of("HCCL_EXEC_TIMEOUT", 1836);
    struct pollfd *waits = calloc(count + 1, sizeof *waits);
    header *expected = calloc(count + 1, sizeof *expected);
    int *done = calloc(count + 1, sizeof *done);
    int result = waits && expected && done ? HCCL_OK : HCCL_E_MEMORY;
    uint64_t number = kind == POINT_TO_POINT ? 0 : ++comm->collectives;
    for (uint32_t i = 0; i < count && !result; i++) {
        uint64_t *messages = items[i].sends ? comm->sent : comm->received;
        expected[i] = (header){kind, type, items[i].bytes, kind == POINT_TO_POINT ? ++messages[items[i].peer] : number};
        items[i].head = items[i].sends ? expected[i] : (header){0};
    }
    uint32_t left = count;
    if (!result) copy_to_self(comm, items, count, done, &left);
    while (left && !result) {
        uint32_t waiting = 0;
        for (uint32_t i = 0; i < count && !result; i++) {
            if (done[i]) continue;
            int blocked = 0;
            for (uint32_t j = 0; j < i && !blocked; j++)
                blocked = !done[j] && items[j].peer == items[i].peer && items[j].sends == items[i].sends;
            if (blocked) continue;
            int was_checked = items[i].checked;
            result = advance(comm, &items[i], &done[i]);
            if (!result && !was_checked && items[i].checked && memcmp(&items[i].head, &expected[i], sizeof(header)))
                result = mismatch(comm, items[i].peer, &items[i].head, &expected[i]);
            if (done[i]) left--;
            else waits[waiting++] = (struct pollfd){comm->links[items[i].peer], items[i].sends ? POLLOUT : POLLIN, 0};
        }
        if (!left || result) break;
        double remaining = until - now();
        if (remaining <= 0) result = HCCL_E_TIMEOUT;
        else if (waiting) poll(waits, waiting, remaining > 1 ? 1000 : (int)(remaining * 1e3) + 1);
    }
    free(waits);
    free(expected);
    free(done);
    return result;
}

/* ---- reductions ---- */

static float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 1023, bits;
    if (exponent == 31) bits = sign | 0x7f800000u | fraction << 13;
    else if (exponent) bits = sign | (exponent + 112) << 23 | fraction << 13;
    else {
        float value = (float)fraction / 16777216.0f;
        return sign ? -value : value;
    }
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t float_to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) {
        /* Adding 0.5 rounds to the spacing of subnormal halves, to nearest even. */
        float shifted;
        memcpy(&shifted, &magnitude, 4);
        shifted += 0.5f;
        memcpy(&magnitude, &shifted, 4);
        return (uint16_t)(sign | (magnitude - 0x3f000000));
    }
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude - 0x38000000) >> 13));
}

static float brain_to_float(uint16_t brain) {
    uint32_t bits = (uint32_t)brain << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t float_to_brain(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define COMBINE(a, b) (op == SUM ? (a) + (b) : op == PROD ? (a) * (b) : op == MAX ? ((a) > (b) || (a) != (a) ? (a) : (b)) : ((a) < (b) || (a) != (a) ? (a) : (b)))
#define PLAIN(name, type)                                                             \
    static void name(type *total, const type *part, uint64_t count, int op) {         \
        for (uint64_t i = 0; i < count; i++) total[i] = (type)COMBINE(total[i], part[i]); \
    }
#define NARROW(name, widen, narrow)                                                   \
    static void name(uint16_t *total, const uint16_t *part, uint64_t count, int op) { \
        for (uint64_t i = 0; i < count; i++) {                                        \
            float a = widen(total[i]), b = widen(part[i]);                            \
            total[i] = narrow(COMBINE(a, b));                                         \
        }                                                                             \
    }
PLAIN(reduce_i8, int8_t)
PLAIN(reduce_i16, int16_t)
PLAIN(reduce_i32, uint32_t)
PLAIN(reduce_f32, float)
PLAIN(reduce_i64, int64_t)
PLAIN(reduce_u64, uint64_t)
PLAIN(reduce_u8, uint8_t)
PLAIN(reduce_u16, uint16_t)
PLAIN(reduce_f64, double)
NARROW(reduce_f16, half_to_float, float_to_half)
NARROW(reduce_bf16, brain_to_float, float_to_brain)

static void reduce_signed_i32(int32_t *total, const int32_t *part, uint64_t count, int op) {
    if (op == SUM || op == PROD) {
        reduce_i32((uint32_t *)total, (const uint32_t *)part, count, op);
        return;
    }
    for (uint64_t i = 0; i < count; i++) total[i] = COMBINE(total[i], part[i]);
}

static void reduce_into(void *total, const void *part, uint64_t count, uint32_t type, int op) {
    switch (type) {
    case INT8: reduce_i8(total, part, count, op); break;
    case INT16: reduce_i16(total, part, count, op); break;
    case INT32: reduce_signed_i32(total, part, count, op); break;
    case FP16: reduce_f16(total, part, count, op); break;
    case FP32: reduce_f32(total, part, count, op); break;
    case INT64: reduce_i64(total, part, count, op); break;
    case UINT64: reduce_u64(total, part, count, op); break;
    case UINT8: reduce_u8(total, part, count, op); break;
    case UINT16: reduce_u16(total, part, count, op); break;
    case UINT32: reduce_i32(total, part, count, op); break;
    case FP64: reduce_f64(total, part, count, op); break;
    case BF16: reduce_bf16(total, part, count, op); break;
    default: break;
    }
}

/* ---- collectives ---- */

/* One call. Arrays of counts and displacements are copied, because torch_npu frees them after the call. */
typedef struct {
    communicator *comm;
    uint32_t kind, type, root, items, lists;
    int op;
    const char *source;
    char *target;
    uint64_t count;
    uint64_t *counts;
    transfer *transfers;
} call;

static uint64_t bytes_of(const call *c, uint64_t count) { return count * type_bytes[c->type]; }

static void move(void *target, const void *source, uint64_t bytes) {
    if (bytes && target != source) memmove(target, source, bytes);
}

static transfer outgoing(uint32_t peer, const void *data, uint64_t bytes) {
    return (transfer){.peer = peer, .sends = 1, .data = (void *)data, .bytes = bytes};
}
static transfer incoming(uint32_t peer, void *data, uint64_t bytes) { return (transfer){.peer = peer, .data = data, .bytes = bytes}; }

/* parts: the input of every rank in `count` elements each, or NULL to allocate. Reduces them in the order of the ranks. */
static int gather_and_reduce(call *c, const char *source, const uint64_t *offsets, const uint64_t *counts, int receives, char *target) {
    communicator *comm = c->comm;
    uint64_t own = counts[comm->rank], bytes = bytes_of(c, own);
    char *parts = receives ? malloc(bytes * comm->size + 1) : NULL;
    transfer *items = calloc(2 * comm->size + 1, sizeof *items);
    uint32_t count = 0;
    int result = items && (parts || !receives) ? HCCL_OK : HCCL_E_MEMORY;
    for (uint32_t rank = 0; rank < comm->size && !result; rank++) {
        if (rank == comm->rank) continue;
        if (c->kind != REDUCE || rank == c->root)
            items[count++] = outgoing(rank, source + bytes_of(c, offsets[rank]), bytes_of(c, counts[rank]));
        if (receives) items[count++] = incoming(rank, parts + rank * bytes, bytes);
    }
    if (!result) result = exchange(comm, items, count, c->kind, c->type | (uint32_t)c->op << 8);
    if (!result && receives) {
        move(parts + comm->rank * bytes, source + bytes_of(c, offsets[comm->rank]), bytes);
        for (uint32_t rank = 1; rank < comm->size; rank++) reduce_into(parts, parts + rank * bytes, own, c->type, c->op);
        move(target, parts, bytes);
    }
    free(parts);
    free(items);
    return result;
}

static int gather(call *c, const char *source, char *target, const uint64_t *offsets, const uint64_t *counts) {
    communicator *comm = c->comm;
    transfer *items = calloc(2 * comm->size + 1, sizeof *items);
    uint32_t count = 0;
    if (!items) return HCCL_E_MEMORY;
    move(target + bytes_of(c, offsets[comm->rank]), source, bytes_of(c, counts[comm->rank]));
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank) continue;
        items[count++] = outgoing(rank, target + bytes_of(c, offsets[comm->rank]), bytes_of(c, counts[comm->rank]));
        items[count++] = incoming(rank, target + bytes_of(c, offsets[rank]), bytes_of(c, counts[rank]));
    }
    int result = exchange(comm, items, count, c->kind, c->type);
    free(items);
    return result;
}

static int all_reduce(call *c, uint64_t *offsets, uint64_t *counts) {
    communicator *comm = c->comm;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        offsets[rank] = c->count * rank / comm->size;
        counts[rank] = c->count * (rank + 1) / comm->size - offsets[rank];
    }
    char *own = malloc(bytes_of(c, counts[comm->rank]) + 1);
    if (!own) return HCCL_E_MEMORY;
    int result = gather_and_reduce(c, c->source, offsets, counts, 1, own);
    if (!result) result = gather(c, own, c->target, offsets, counts);
    free(own);
    return result;
}

static int from_root(call *c) {
    communicator *comm = c->comm;
    uint64_t bytes = bytes_of(c, c->count), step = c->kind == SCATTER ? bytes : 0;
    if (comm->rank != c->root) {
        transfer item = incoming(c->root, c->target, bytes);
        return exchange(comm, &item, 1, c->kind, c->type);
    }
    transfer *items = calloc(comm->size, sizeof *items);
    uint32_t count = 0;
    if (!items) return HCCL_E_MEMORY;
    for (uint32_t rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank) items[count++] = outgoing(rank, c->source + rank * step, bytes);
    int result = exchange(comm, items, count, c->kind, c->type);
    if (!result) move(c->target, c->source + comm->rank * step, bytes);
    free(items);
    return result;
}

static int all_to_all(call *c) {
    communicator *comm = c->comm;
    const uint64_t *sent = c->counts, *sent_at = sent + comm->size, *received = sent_at + comm->size, *received_at = received + comm->size;
    transfer *items = calloc(2 * comm->size + 1, sizeof *items);
    uint32_t count = 0;
    if (!items) return HCCL_E_MEMORY;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank) continue;
        items[count++] = outgoing(rank, c->source + bytes_of(c, sent_at[rank]), bytes_of(c, sent[rank]));
        items[count++] = incoming(rank, c->target + bytes_of(c, received_at[rank]), bytes_of(c, received[rank]));
    }
    move(c->target + bytes_of(c, received_at[comm->rank]), c->source + bytes_of(c, sent_at[comm->rank]), bytes_of(c, sent[comm->rank]));
    int result = exchange(comm, items, count, c->kind, c->type);
    free(items);
    return result;
}

static int perform(call *c) {
    communicator *comm = c->comm;
    uint64_t *offsets = calloc(2 * comm->size, sizeof *offsets), *counts = offsets + comm->size;
    if (!offsets) return HCCL_E_MEMORY;
    int result = HCCL_E_NOT_SUPPORT;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        offsets[rank] = c->kind == REDUCE ? 0 : c->count * rank;
        counts[rank] = c->count;
    }
    if (c->counts && c->kind != ALL_TO_ALL) {
        memcpy(counts, c->counts, comm->size * sizeof *counts);
        memcpy(offsets, c->counts + comm->size, comm->size * sizeof *offsets);
    }
    switch (c->kind) {
    case POINT_TO_POINT: result = exchange(comm, c->transfers, c->items, c->kind, c->type); break;
    case ALL_REDUCE: result = all_reduce(c, offsets, counts); break;
    case ALL_GATHER: result = gather(c, c->source, c->target, offsets, counts); break;
    case REDUCE_SCATTER: result = gather_and_reduce(c, c->source, offsets, counts, 1, c->target); break;
    case REDUCE: result = gather_and_reduce(c, c->source, offsets, counts, comm->rank == c->root, c->target); break;
    case BROADCAST:
    case SCATTER: result = from_root(c); break;
    case ALL_TO_ALL: result = all_to_all(c); break;
    default: break;
    }
    free(offsets);
    return result;
}

static void free_call(call *c) {
    free(c->counts);
    free(c->transfers);
    free(c);
}

static aclError run_call(void *argument) {
    call *c = argument;
    communicator *comm = c->comm;
    int error = atomic_load(&comm->error), earlier = error;
    if (!error) error = perform(c);
    if (error && !earlier) {
        /* On a device, a rank that is gone shows as a notify register that is never written. */
        const char *code = error == HCCL_E_REMOTE || error == HCCL_E_TIMEOUT ? "EI0002: " : "";
        fprintf(stderr, "%s[npu-sim] HCCL: %s failed in rank %u of communicator %s (error %d)\n", code, kinds[c->kind], comm->rank, comm->name, error);
        atomic_store(&comm->error, error);
    }
    free_call(c);
    release(comm);
    return error ? SIM_COLLECTIVE_FAILED : SIM_OK;
}

static int submit(call description, const uint64_t *const *arrays, uint32_t lists, void *stream) {
    communicator *comm = description.comm;
    if (!comm) return HCCL_E_PTR;
    if (description.type >= TYPES || description.root >= comm->size || description.op > MIN || description.op < 0) return HCCL_E_PARA;
    call *c = malloc(sizeof *c);
    if (!c) return HCCL_E_MEMORY;
    *c = description;
    c->lists = lists;
    c->source = sim_host(c->source);
    c->target = sim_host(c->target);
    for (uint32_t i = 0; i < c->items; i++) c->transfers[i].data = sim_host(c->transfers[i].data);
    if (lists) {
        c->counts = malloc((size_t)lists * comm->size * sizeof *c->counts);
        if (!c->counts) {
            free_call(c);
            return HCCL_E_MEMORY;
        }
        for (uint32_t list = 0; list < lists; list++) memcpy(c->counts + (size_t)list * comm->size, arrays[list], comm->size * sizeof *c->counts);
    }
    atomic_fetch_add(&comm->references, 1);
    sim_graph *graph = sim_stream_state_of(stream)->graph;
    /* What is captured runs in each replay. Until then its result is unknown; zeros are valid indices. */
    if (graph) {
        if (c->target && c->kind != POINT_TO_POINT && c->kind != ALL_TO_ALL) memset(c->target, 0, bytes_of(c, c->count));
        return sim_graph_tell(COLLECTIVE, graph, c) ? HCCL_E_NOT_SUPPORT : HCCL_OK;
    }
    if (sim_stream_submit(stream, run_call, c)) {
        release(comm);
        free_call(c);
        return HCCL_E_MEMORY;
    }
    return HCCL_OK;
}

static void *copied(const void *data, size_t bytes) {
    void *copy = data ? malloc(bytes + 1) : NULL;
    return copy ? memcpy(copy, data, bytes) : NULL;
}

/* Runs a captured collective and waits for it. */
SIM_API aclError npu_sim_collective(const call *captured, void *stream) {
    communicator *comm = captured->comm;
    call *c = copied(captured, sizeof *captured);
    if (!c) return SIM_OUT_OF_MEMORY;
    c->counts = copied(captured->counts, (size_t)captured->lists * comm->size * sizeof *c->counts);
    c->transfers = copied(captured->transfers, captured->items * sizeof *c->transfers);
    atomic_fetch_add(&comm->references, 1);
    aclError error = sim_stream_submit(stream, run_call, c);
    return error ? error : sim_stream_drain(stream);
}
SIM_API void npu_sim_forget_collective(call *captured) {
    communicator *comm = captured->comm;
    free_call(captured);
    release(comm);
}

SIM_API int HcclAllReduce(void *source, void *target, uint64_t count, uint32_t type, int op, void *comm, void *stream) {
    TRACE;
    return submit((call){.comm = comm, .kind = ALL_REDUCE, .type = type, .op = op, .source = source, .target = target, .count = count}, NULL, 0, stream);
}
SIM_API int HcclBroadcast(void *data, uint64_t count, uint32_t type, uint32_t root, void *comm, void *stream) {
    TRACE;
    return submit((call){.comm = comm, .kind = BROADCAST, .type = type, .root = root, .source = data, .target = data, .count = count}, NULL, 0, stream);
}
SIM_API int HcclAllGather(void *source, void *target, uint64_t count, uint32_t type, void *comm, void *stream) {
    TRACE;
    return submit((call){.comm = comm, .kind = ALL_GATHER, .type = type, .source = source, .target = target, .count = count}, NULL, 0, stream);
}
SIM_API int HcclAllGatherV(const void *source, uint64_t count, void *target, const void *counts, const void *offsets, uint32_t type, void *comm, void *stream) {
    TRACE;
    const uint64_t *arrays[] = {counts, offsets};
    return submit((call){.comm = comm, .kind = ALL_GATHER, .type = type, .source = source, .target = target, .count = count}, arrays, 2, stream);
}
SIM_API int HcclReduceScatter(void *source, void *target, uint64_t count, uint32_t type, int op, void *comm, void *stream) {
    TRACE;
    return submit((call){.comm = comm, .kind = REDUCE_SCATTER, .type = type, .op = op, .source = source, .target = target, .count = count}, NULL, 0, stream);
}
SIM_API int HcclReduceScatterV(const void *source, const void *counts, const void *offsets, void *target, uint64_t count, uint32_t type, int op, void *comm, void *stream) {
    TRACE;
    const uint64_t *arrays[] = {counts, offsets};
    return submit((call){.comm = comm, .kind = REDUCE_SCATTER, .type = type, .op = op, .source = source, .target = target, .count = count}, arrays, 2, stream);
}
SIM_API int HcclReduce(void *source, void *target, uint64_t count, uint32_t type, int op, uint32_t root, void *comm, void *stream) {
    TRACE;
    return submit((call){.comm = comm, .kind = REDUCE, .type = type, .op = op, .root = root, .source = source, .target = target, .count = count}, NULL, 0, stream);
}
SIM_API int HcclScatter(void *source, void *target, uint64_t count, uint32_t type, uint32_t root, void *comm, void *stream) {
    TRACE;
    return submit((call){.comm = comm, .kind = SCATTER, .type = type, .root = root, .source = source, .target = target, .count = count}, NULL, 0, stream);
}
SIM_API int HcclAlltoAllV(const void *source, const void *sent, const void *sent_at, uint32_t type, const void *target, const void *received,
                          const void *received_at, uint32_t received_type, void *comm, void *stream) {
    TRACE;
    const uint64_t *arrays[] = {sent, sent_at, received, received_at};
    if (type != received_type) return HCCL_E_PARA;
    return submit((call){.comm = comm, .kind = ALL_TO_ALL, .type = type, .source = source, .target = (void *)target}, arrays, 4, stream);
}
SIM_API int HcclAlltoAll(const void *source, uint64_t count, uint32_t type, const void *target, uint64_t received, uint32_t received_type, void *handle, void *stream) {
    communicator *comm = handle;
    if (!comm) return HCCL_E_PTR;
    if (count != received) return HCCL_E_PARA;
    uint64_t *arrays = calloc(2 * comm->size, sizeof *arrays);
    if (!arrays) return HCCL_E_MEMORY;
    for (uint32_t rank = 0; rank < comm->size; rank++) arrays[rank] = count, arrays[comm->size + rank] = count * rank;
    int result = HcclAlltoAllV(source, arrays, arrays + comm->size, type, target, arrays, arrays + comm->size, received_type, comm, stream);
    free(arrays);
    return result;
}

static int point_to_point(transfer item, uint64_t count, uint32_t type, communicator *comm, void *stream) {
    if (!comm) return HCCL_E_PTR;
    if (type >= TYPES || item.peer >= comm->size || item.peer == comm->rank) return HCCL_E_PARA;
    item.bytes = count * type_bytes[type];
    call c = {.comm = comm, .kind = POINT_TO_POINT, .items = 1, .transfers = malloc(sizeof item)};
    if (!c.transfers) return HCCL_E_MEMORY;
    *c.transfers = item;
    return submit(c, NULL, 0, stream);
}
SIM_API int HcclSend(void *data, uint64_t count, uint32_t type, uint32_t peer, void *comm, void *stream) {
    TRACE;
    return point_to_point(outgoing(peer, data, 0), count, type, comm, stream);
}
SIM_API int HcclRecv(void *data, uint64_t count, uint32_t type, uint32_t peer, void *comm, void *stream) {
    TRACE;
    return point_to_point(incoming(peer, data, 0), count, type, comm, stream);
}

typedef struct {
    int receives;
    void *data;
    uint64_t count;
    uint32_t type, peer;
} batch_item;

SIM_API int HcclBatchSendRecv(const batch_item *batch, uint32_t count, void *handle, void *stream) {
    TRACE;
    communicator *comm = handle;
    if (!comm || !batch) return HCCL_E_PTR;
    call c = {.comm = comm, .kind = POINT_TO_POINT, .items = count, .transfers = calloc(count + 1, sizeof(transfer))};
    if (!c.transfers) return HCCL_E_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        if (batch[i].type >= TYPES || batch[i].peer >= comm->size) {
            free(c.transfers);
            return HCCL_E_PARA;
        }
        uint64_t bytes = batch[i].count * type_bytes[batch[i].type];
        c.transfers[i] = batch[i].receives ? incoming(batch[i].peer, batch[i].data, bytes) : outgoing(batch[i].peer, batch[i].data, bytes);
    }
    if (!pairs_with_self(comm, c.transfers, count)) {
        free(c.transfers);
        return HCCL_E_PARA;
    }
    return submit(c, NULL, 0, stream);
}
