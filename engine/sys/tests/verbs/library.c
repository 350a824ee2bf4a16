/* An invented libibverbs with one-sided requests between queue pairs of one process. It checks what a device checks:
 * keys, ranges, states, the depth of a queue pair, and the order of releases (a wrong one is printed to stderr).
 * Requests are carried out when completions are polled or a queue pair fails, not when they are posted, unless an
 * event is awaited. A registration ends in the middle of the write that is next. One lock makes all calls one after the
 * other.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct device { void *ops[2]; int node_type, transport_type; char name[64]; };
struct context { struct device *device; void *ops[32]; int command, events, held; };
struct event { int port, unused, type; };
struct pd { struct context *context; uint32_t handle; int held; };
struct mr { struct context *context; struct pd *pd; void *addr; size_t length; uint32_t handle, lkey, rkey; uint64_t base; };
struct channel { struct context *context; int fd, refs; struct cq *signalled; };
struct wc { uint64_t id; uint32_t status; int opcode; uint32_t vendor, rest[7]; };
struct cq {
    struct context *context; struct channel *channel; int held, armed, events;
    struct wc *done; int entries, first, count;
};
struct sge { uint64_t addr; uint32_t length, lkey; };
struct wr {
    uint64_t id; struct wr *next; struct sge *list; int count, opcode; unsigned flags; uint32_t imm;
    uint64_t remote; uint32_t rkey; uint64_t others[9];
};
struct qp {
    struct context *context; void *own; struct pd *pd; struct cq *send, *recv; void *srq;
    uint32_t handle, number; int state; uint32_t depth, peer, reads; int global;
    struct wr *queue; struct sge *source; uint32_t queued;
};
struct init_attr { void *own; struct cq *send, *recv; void *srq; uint32_t cap[5]; int type, all; };
struct qp_attr {
    int state, current, mtu, mig; uint32_t qkey, rq_psn, sq_psn, peer; unsigned access; uint32_t cap[5];
    uint8_t dgid[16]; uint32_t flow; uint8_t sgid_index, hops, class, pad;
    uint16_t dlid; uint8_t sl, bits, rate, global, port, pad2; uint8_t alternative[32];
    uint16_t pkey, alt_pkey; uint8_t notify, draining, max_reads, max_dest_reads;
};
_Static_assert(sizeof(struct wr) == 128 && sizeof(struct wc) == 48, "as in verbs.h");
_Static_assert(__builtin_offsetof(struct qp_attr, pkey) == 120, "as in verbs.h");
_Static_assert(__builtin_offsetof(struct context, events) == 268, "as in verbs.h");

enum { KEYS = 256, PAIRS = 1 << 16, DEVICES = 8, MTU = 3, LID = 7, NO_GID = 9, PACKET = 1024, RESET = 0, RTR = 2, RTS = 3, ERROR = 6, FLUSHED = 5, LOCAL = 4, REMOTE = 10, RETRIES = 12 };
static struct mr *keys[KEYS];
static struct qp *pairs[PAIRS];
/* The number of the next queue pair. */
static uint32_t next_pair = 17;
static struct device devices[DEVICES], *list[DEVICES + 1];

static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;
static void leave(int *unused) { (void)unused, pthread_mutex_unlock(&calls); }
/* Until the end of the function. */
#define LOCKED __attribute__((cleanup(leave))) int locked = pthread_mutex_lock(&calls)

/* The number in the file NAME-DEVICE of the folder MOONCAKE_TEST_CALLS, or another one. */
static long number(const char *name, struct device *device, long other) {
    char path[512], text[32] = {0};
    const char *folder = getenv("MOONCAKE_TEST_CALLS");
    /* A process in a sandbox must not look for files. */
    if (!folder)
        return other;
    snprintf(path, sizeof path, "%s/%s-%s", folder, name, device->name);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return other;
    long found = read(fd, text, sizeof text - 1) > 0 ? atol(text) : other;
    return close(fd), found;
}

/* Adds a line to the file NAME of the folder: "posts" has the requests of each doorbell and how many of them are signalled,
 * "events" a line for each completion event, "access" one for each key. */
static void note(const char *name, const char *line) {
    char path[512];
    const char *folder = getenv("MOONCAKE_TEST_CALLS");
    if (!folder)
        return;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dprintf(fd, "%s\n", line);
    close(fd);
}

/* Queue pairs, completion queues and registrations that exist, in the file "objects" of the folder. Under the lock. */
enum { QUEUE_PAIRS, QUEUES, REGISTRATIONS, KINDS };
static void count(int kind, int32_t change) {
    static int32_t own[KINDS], *objects;
    if (!objects) {
        char path[512];
        const char *folder = getenv("MOONCAKE_TEST_CALLS");
        objects = own;
        snprintf(path, sizeof path, "%s/objects", folder ? folder : "");
        int fd = folder ? open(path, O_RDWR | O_CREAT, 0600) : -1;
        if (fd >= 0) {
            if (ftruncate(fd, sizeof own))
                abort();
            void *shared = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            objects = shared == MAP_FAILED ? own : shared;
            close(fd);
        }
    }
    objects[kind] += change;
}

/* With a folder in MOONCAKE_TEST_CALLS a call adds the name of its thread to the file of its name, hangs while there is
 * a file "hang-NAME" or "hang-NAME-DEVICE", and fails with the errno in "fail-NAME-DEVICE". Without the lock: other calls
 * go on. For a process without files: the call NAME-DEVICE in MOONCAKE_TEST_REFUSED fails with EIO. */
static int called(const char *name, struct device *device) {
    char path[512], one[512], thread[17] = {0}, failing[64];
    const char *folder = getenv("MOONCAKE_TEST_CALLS"), *refused = getenv("MOONCAKE_TEST_REFUSED");
    snprintf(one, sizeof one, "%s-%s", name, device->name);
    if (refused && !strcmp(refused, one))
        return errno = EIO;
    if (!folder)
        return 0;
    pthread_getname_np(pthread_self(), thread, 16);
    note(name, thread);
    snprintf(path, sizeof path, "%s/hang-%s", folder, name);
    snprintf(one, sizeof one, "%s/hang-%s-%s", folder, name, device->name);
    while (!access(path, F_OK) || !access(one, F_OK))
        usleep(1000);
    snprintf(failing, sizeof failing, "fail-%s", name);
    return errno = (int)number(failing, device, 0);
}

/* With "infiniband" in MOONCAKE_TEST_LINK the ports are of InfiniBand. Entry NO_GID of a GID table is empty. */
static int infiniband(void) {
    const char *link = getenv("MOONCAKE_TEST_LINK");
    return link && !strcmp(link, "infiniband");
}

/* Adds how a queue pair reaches its peer to the file "path" of the same folder. */
static void addressed(const struct qp_attr *attr) {
    char path[512];
    const char *folder = getenv("MOONCAKE_TEST_CALLS");
    if (!folder)
        return;
    snprintf(path, sizeof path, "%s/path", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dprintf(fd, "global %d dgid %d sgid %d class %d dlid %d sl %d\n", attr->global, attr->dgid[0], attr->sgid_index,
            attr->class, attr->dlid, attr->sl);
    close(fd);
}

static void wrong_order(const char *what, int held) {
    if (held)
        fprintf(stderr, "%s is released while %d objects use it\n", what, held);
}

static void complete(struct qp *qp, uint64_t id, uint32_t status) {
    struct cq *cq = qp->send;
    cq->done[(cq->first + cq->count++) % cq->entries] = (struct wc){.id = id, .status = status, .vendor = status ? 0x81 : 0};
    if (cq->armed && cq->channel) {
        uint64_t one = 1;
        note("events", cq->context->device->name);
        cq->armed = 0;
        cq->events++;
        cq->channel->signalled = cq;
        if (write(cq->channel->fd, &one, 8) != 8)
            abort();
    }
}

/* A key of another domain is no key. */
static char *range(struct pd *pd, uint32_t key, uint64_t address, uint32_t length) {
    struct mr *mr = keys[key % KEYS];
    if (!mr || mr->lkey != key || mr->pd != pd || address < mr->base || address - mr->base + length > mr->length)
        return NULL;
    return (char *)mr->addr + (address - mr->base);
}

static uint32_t carry_out(struct qp *qp, struct wr *wr, struct sge *sge) {
    struct qp *peer = pairs[qp->peer % PAIRS];
    /* Packets without the global route header that the other end has, and the reverse, may be dropped. */
    if (!peer || peer->number != qp->peer || peer->state < RTR || peer->state == ERROR || peer->global != qp->global)
        return RETRIES;
    char *near = range(qp->pd, sge->lkey, sge->addr, sge->length), *far = range(peer->pd, wr->rkey, wr->remote, sge->length);
    if (!near)
        return LOCAL;
    if (!far)
        return REMOTE;
    if (wr->opcode == 0)
        memcpy(far, near, sge->length);
    else
        memcpy(near, far, sge->length);
    return 0;
}

/* Of the next write of each queue pair the first packets arrive, if it has several. */
static void begin_writes(struct mr *mr) {
    for (uint32_t at = 0; at < next_pair && at < PAIRS; at++) {
        struct qp *qp = pairs[at];
        if (!qp || !qp->queued || qp->state != RTS || qp->queue[0].opcode || qp->queue[0].rkey != mr->rkey)
            continue;
        struct sge first = qp->source[0];
        first.length = first.length / 2 / PACKET * PACKET;
        carry_out(qp, &qp->queue[0], &first);
    }
}

static void run(struct qp *qp) {
    for (uint32_t at = 0; at < qp->queued; at++) {
        struct wr *wr = &qp->queue[at];
        uint32_t status = qp->state == ERROR ? FLUSHED : carry_out(qp, wr, &qp->source[at]);
        if (status)
            qp->state = ERROR;
        if (status || wr->flags & 2)
            complete(qp, wr->id, status);
    }
    qp->queued = 0;
}

static int poll_cq(struct cq *cq, int most, struct wc *wc) {
    LOCKED;
    for (uint32_t at = 0; at < next_pair && at < PAIRS; at++)
        if (pairs[at] && pairs[at]->send == cq)
            run(pairs[at]);
    int count = 0;
    for (; count < most && cq->count; count++, cq->count--)
        wc[count] = cq->done[cq->first++ % cq->entries];
    return count;
}

static int notify(struct cq *cq, int solicited) {
    LOCKED;
    (void)solicited;
    cq->armed = 1;
    return 0;
}

static int post_send(struct qp *qp, struct wr *wr, struct wr **bad) {
    LOCKED;
    int requests = 0, signalled = 0;
    char text[32];
    for (; wr; wr = wr->next) {
        *bad = wr;
        if (qp->state != RTS && qp->state != ERROR)
            return EINVAL;
        if (qp->queued == qp->depth)
            return ENOMEM;
        if (wr->opcode == 4 && !qp->reads)
            return EINVAL;
        qp->source[qp->queued] = *wr->list;
        qp->queue[qp->queued++] = *wr;
        requests++, signalled += (wr->flags & 2) != 0;
    }
    snprintf(text, sizeof text, "%d %d", requests, signalled);
    note("posts", text);
    /* A device works at once; here, only an event that somebody waits for needs it. */
    if (qp->send->armed)
        run(qp);
    return 0;
}

/* As many as the file "devices-all" of the folder states, or 2. */
struct device **ibv_get_device_list(int *count) {
    LOCKED;
    struct device all = {.name = "all"};
    long wanted = number("devices", &all, 2);
    *count = wanted < DEVICES ? (int)wanted : DEVICES;
    for (int at = 0; at < *count; at++) {
        snprintf(devices[at].name, sizeof devices[at].name, "invented_%d", at);
        list[at] = &devices[at];
    }
    return list[*count] = NULL, list;
}
void ibv_free_device_list(struct device **given) { (void)given; }
const char *ibv_get_device_name(struct device *given) { return given->name; }

/* The events of a device are bytes, type and port, in the pipe "event-DEVICE" of the folder MOONCAKE_TEST_CALLS. */
static int events(struct device *device) {
    char path[512];
    const char *folder = getenv("MOONCAKE_TEST_CALLS");
    if (!folder)
        return eventfd(0, 0);
    snprintf(path, sizeof path, "%s/event-%s", folder, device->name);
    mkfifo(path, 0600);
    return open(path, O_RDWR);
}
int ibv_get_async_event(struct context *context, struct event *event) {
    unsigned char bytes[2];
    if (read(context->events, bytes, 2) != 2)
        return -1;
    *event = (struct event){bytes[1], 0, bytes[0]};
    return 0;
}
void ibv_ack_async_event(struct event *event) { event->type = -1; }

struct context *ibv_open_device(struct device *given) {
    if (called("ibv_open_device", given))
        return NULL;
    LOCKED;
    struct context *made = calloc(1, sizeof *made);
    made->device = given;
    made->events = events(given);
    made->ops[11] = (void *)poll_cq;
    made->ops[12] = (void *)notify;
    made->ops[25] = (void *)post_send;
    return made;
}
int ibv_close_device(struct context *context) {
    wrong_order("the device", context->held);
    return close(context->events), 0;
}
int ibv_query_device(struct context *context, char *attr) {
    static const int most = 1 << 15;
    uint64_t size = (uint64_t)number("max_mr_size", context->device, -1);
    int entries = (int)number("max_cqe", context->device, most);
    memset(attr, 0, 232);
    memcpy(attr + 80, &size, 8);
    for (int at = 108; at <= 136; at += at == 108 ? 24 : 4)
        memcpy(attr + at, &most, 4);
    memcpy(attr + 132, &entries, 4);
    return 0;
}

int ibv_query_port(struct context *context, uint8_t port, int *attr) {
    (void)port;
    int refused = called("ibv_query_port", context->device);
    if (refused)
        return refused;
    memset(attr, 0, 52);
    attr[0] = 4, attr[2] = MTU;
    if (infiniband())
        ((uint16_t *)attr)[17] = LID;
    ((uint8_t *)attr)[46] = infiniband() ? 1 : 2;
    return 0;
}
int ibv_query_gid(struct context *context, uint8_t port, int index, uint8_t *gid) {
    (void)context, (void)port;
    memset(gid, 7, 16);
    if (index == NO_GID)
        memset(gid, 0, 16);
    return 0;
}

struct pd *ibv_alloc_pd(struct context *context) {
    LOCKED;
    struct pd *made = calloc(1, sizeof *made);
    made->context = context;
    context->held++;
    return made;
}
int ibv_dealloc_pd(struct pd *pd) {
    LOCKED;
    return wrong_order("the domain", pd->held), pd->context->held--, 0;
}

/* With a number in MOONCAKE_TEST_DELAY each registration takes so many milliseconds. For a process without files: with 0 and 1
 * in MOONCAKE_TEST_REGISTRATIONS those of each device with a 1 fail, the last digit counts for all that follow. */
static struct mr *reg(struct pd *pd, void *addr, size_t length, uint64_t base, unsigned access) {
    static size_t registrations[DEVICES];
    const char *delay = getenv("MOONCAKE_TEST_DELAY"), *failing = getenv("MOONCAKE_TEST_REGISTRATIONS");
    if (delay)
        poll(NULL, 0, atoi(delay));
    LOCKED;
    size_t at = registrations[pd->context->device - devices]++, most = failing ? strlen(failing) : 0;
    if (most && failing[at < most ? at : most - 1] == '1') {
        errno = ENOMEM;
        return NULL;
    }
    static uint32_t next = 1;
    char text[16];
    snprintf(text, sizeof text, "%#x", access);
    note("access", text);
    if (((uintptr_t)addr ^ base) & 4095) {
        errno = EINVAL;
        return NULL;
    }
    struct mr *made = calloc(1, sizeof *made);
    *made = (struct mr){pd->context, pd, addr, length, 0, next, next, base};
    keys[next++ % KEYS] = made;
    pd->held++;
    count(REGISTRATIONS, 1);
    return made;
}
struct mr *ibv_reg_mr_iova2(struct pd *pd, void *addr, size_t length, uint64_t base, unsigned access) {
    return called("ibv_reg_mr_iova2", pd->context->device) ? NULL : reg(pd, addr, length, base, access);
}
struct mr *ibv_reg_mr_iova(struct pd *pd, void *addr, size_t length, uint64_t base, int access) {
    return called("ibv_reg_mr_iova", pd->context->device) ? NULL : reg(pd, addr, length, base, (unsigned)access);
}
struct mr *ibv_reg_mr(struct pd *pd, void *addr, size_t length, int access) {
    return ibv_reg_mr_iova(pd, addr, length, (uintptr_t)addr, access);
}
int ibv_dereg_mr(struct mr *mr) {
    int refused = called("ibv_dereg_mr", mr->context->device);
    if (refused)
        return refused;
    LOCKED;
    begin_writes(mr);
    count(REGISTRATIONS, -1);
    return keys[mr->lkey % KEYS] = NULL, mr->pd->held--, 0;
}

struct channel *ibv_create_comp_channel(struct context *context) {
    LOCKED;
    struct channel *made = calloc(1, sizeof *made);
    made->context = context;
    made->fd = eventfd(0, EFD_SEMAPHORE);
    context->held++;
    return made;
}
int ibv_destroy_comp_channel(struct channel *channel) {
    LOCKED;
    wrong_order("the channel", channel->refs);
    close(channel->fd);
    channel->context->held--;
    return 0;
}
int ibv_get_cq_event(struct channel *channel, struct cq **cq, void **own) {
    LOCKED;
    uint64_t count;
    if (read(channel->fd, &count, 8) != 8)
        return -1;
    *cq = channel->signalled, *own = NULL;
    return 0;
}
void ibv_ack_cq_events(struct cq *cq, unsigned count) {
    LOCKED;
    cq->events -= (int)count;
}

struct cq *ibv_create_cq(struct context *context, int entries, void *own, struct channel *channel, int vector) {
    (void)own, (void)vector;
    if (called("ibv_create_cq", context->device))
        return NULL;
    LOCKED;
    struct cq *made = calloc(1, sizeof *made);
    made->done = calloc((size_t)entries, sizeof *made->done);
    made->entries = entries;
    made->context = context;
    made->channel = channel;
    context->held++;
    count(QUEUES, 1);
    if (channel)
        channel->refs++;
    return made;
}
int ibv_destroy_cq(struct cq *cq) {
    LOCKED;
    wrong_order("the queue", cq->held);
    free(cq->done);
    count(QUEUES, -1);
    if (cq->events)
        fprintf(stderr, "%d events were not acknowledged\n", cq->events);
    if (cq->channel)
        cq->channel->refs--;
    cq->context->held--;
    return 0;
}

/* What it gets of a queue pair goes to the file "caps": the device, requests to send and to receive, ranges of each, inline bytes. */
struct qp *ibv_create_qp(struct pd *pd, struct init_attr *attr) {
    if (called("ibv_create_qp", pd->context->device))
        return NULL;
    LOCKED;
    char text[128];
    snprintf(text, sizeof text, "%s %u %u %u %u %u", pd->context->device->name, attr->cap[0], attr->cap[1], attr->cap[2],
             attr->cap[3], attr->cap[4]);
    note("caps", text);
    count(QUEUE_PAIRS, 1);
    struct qp *made = calloc(1, sizeof *made);
    made->context = pd->context;
    made->pd = pd;
    made->send = attr->send;
    made->number = next_pair;
    made->depth = attr->cap[0];
    made->queue = calloc(made->depth, sizeof *made->queue);
    made->source = calloc(made->depth, sizeof *made->source);
    pairs[next_pair++ % PAIRS] = made;
    pd->held++;
    attr->send->held++;
    return made;
}
/* Takes as many microseconds as the file "modify-DEVICE" states. */
int ibv_modify_qp(struct qp *qp, struct qp_attr *attr, int mask) {
    long delay = number("modify", qp->context->device, 0);
    if (delay > 0)
        usleep((useconds_t)delay);
    LOCKED;
    /* What the standard wants of each step (qp.c of the kernel's ib_core). */
    static const int wanted[] = {0, 0x39, 0x129181, 0x12e01};
    if (attr->state == ERROR && mask == 1) {
        qp->state = ERROR;
        run(qp);
        return 0;
    }
    if (attr->state != qp->state + 1 || attr->state > RTS || mask != wanted[attr->state])
        return EINVAL;
    /* RoCE has no other address than the GID. */
    if (attr->state == RTR && (infiniband() ? attr->dlid != LID : !attr->global))
        return EINVAL;
    qp->state = attr->state;
    if (attr->state == RTR) {
        qp->peer = attr->peer;
        qp->global = attr->global;
        addressed(attr);
    }
    if (attr->state == RTS)
        qp->reads = attr->max_reads;
    return 0;
}
int ibv_destroy_qp(struct qp *qp) {
    int refused = called("ibv_destroy_qp", qp->context->device);
    if (refused)
        return refused;
    LOCKED;
    pairs[qp->number % PAIRS] = NULL;
    qp->pd->held--;
    qp->send->held--;
    count(QUEUE_PAIRS, -1);
    free(qp->queue), free(qp->source), free(qp);
    return 0;
}
