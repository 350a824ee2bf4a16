/* An invented libibverbs for tests; script.h controls it. Prints a wrong order of releases to stderr.
 *
 *   devices=mlx5_0,mlx5_1   names                      max_mr_size=68719476736
 *   open=5                  errno of a call, or hang   iwarp=1, infiniband=1, down=1
 *   open query_device alloc_pd reg_mr dereg_mr query_port create_cq create_qp init rtr rts post_send
 *   status=12               how a write ends           lost=1, torn=1: it never ends; bytes of it and later ones differ
 *   post_read read_status lost_read torn_read   the same of a read
 *   reg_dmabuf=95            of memory that was exported
 *   gid=none
 *   traffic_class=106 service_level=3   the only ones that rtr takes; default 0
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>

#include "script.h"

struct device { void *ops[2]; int node_type, transport_type; char name[64]; };
struct context { struct device *device; void *ops[32]; int fds[3]; int held; };
struct pd { struct context *context; uint32_t handle; int held; };
struct mr { struct context *context; struct pd *pd; void *addr; size_t length; uint32_t handle, lkey, rkey; };
struct cq { struct context *context; void *channel, *own; int held, ended; uint32_t status; uint64_t order; };
struct qp {
    struct context *context; void *own; struct pd *pd; struct cq *send, *recv; void *srq;
    uint32_t handle, number; int state;
};
struct init_attr { void *own; struct cq *send, *recv; void *srq; uint32_t cap[5]; int type, all; };
struct qp_attr {
    int state, current, mtu, mig; uint32_t qkey, rq_psn, sq_psn, peer; unsigned access; uint32_t cap[5];
    uint8_t dgid[16]; uint32_t flow; uint8_t sgid_index, hops, class, pad; uint64_t align[0];
    uint16_t dlid; uint8_t sl, bits, rate, global, port;
};
struct sge { uint64_t addr; uint32_t length, lkey; };
struct wr {
    uint64_t id; struct wr *next; struct sge *list; int count, opcode; unsigned flags; uint32_t imm;
    uint64_t remote; uint32_t rkey;
};
struct wc { uint64_t id; uint32_t status; int opcode; uint32_t vendor, rest[7]; };
struct port_attr {
    int state, max_mtu, mtu, gids; uint32_t counts[4]; uint16_t pkeys, lid, sm_lid; uint8_t bytes[8];
    uint8_t layer, flags; uint16_t more;
};

enum { LID = 7, KEYS = 64, WRITE = 0, READ = 4 };
static const uint8_t GID[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 18, 0, 1};
static struct mr *by_key[KEYS];
static struct device devices[16];
static struct device *list[17];

static int refused(const char *call) { return errno = failure(call); }

static int busy(const char *what, int held) {
    if (held)
        fprintf(stderr, "%s is released while %d objects use it\n", what, held);
    return held ? EBUSY : 0;
}

struct device **ibv_get_device_list(int *count) {
    const char *value = scripted("devices");
    char names[256];
    snprintf(names, sizeof names, "%s", value ? value : "mlx5_0");
    *count = 0;
    for (char *at = strtok(names, ","); at && *count < 16; at = strtok(NULL, ",")) {
        snprintf(devices[*count].name, 64, "%s", at);
        list[*count] = &devices[*count];
        (*count)++;
    }
    for (int at = 0; at < *count; at++)
        devices[at].transport_type = number("iwarp");
    return list;
}
void ibv_free_device_list(struct device **given) { (void)given; }
const char *ibv_get_device_name(struct device *device) { return device->name; }

static int poll_cq(struct cq *cq, int count, struct wc *wc) {
    (void)count;
    if (!cq->ended)
        return 0;
    cq->ended = 0;
    memset(wc, 0, sizeof *wc);
    wc->id = cq->order;
    wc->status = cq->status;
    wc->vendor = wc->status ? 0x81 : 0;
    return 1;
}

static int post_send(struct qp *qp, struct wr *wr, struct wr **bad) {
    static int transfers[READ + 1];
    int reads = wr->opcode == READ;
    const char *torn = reads ? "torn_read" : "torn";
    if (refused(reads ? "post_read" : "post_send")) {
        *bad = wr;
        return errno;
    }
    struct mr *from = by_key[wr->list->lkey % KEYS], *to = by_key[wr->rkey % KEYS];
    char *source = (char *)(uintptr_t)wr->list->addr, *target = (char *)(uintptr_t)wr->remote;
    size_t length = wr->list->length;
    int within = from && to && source >= (char *)from->addr && target >= (char *)to->addr &&
                 source + length <= (char *)from->addr + from->length &&
                 target + length <= (char *)to->addr + to->length;
    if (qp->state != 3 || (wr->opcode != WRITE && !reads) || wr->count != 1 || !within)
        return EINVAL;
    char *to_change = reads ? source : target;
    memcpy(to_change, reads ? target : source, length);
    if (number(torn) && ++transfers[wr->opcode] >= number(torn))
        to_change[length / 2] ^= 1;
    qp->send->order = wr->id;
    qp->send->status = (uint32_t)number(reads ? "read_status" : "status");
    qp->send->ended = !number(reads ? "lost_read" : "lost");
    return 0;
}

struct context *ibv_open_device(struct device *device) {
    if (refused("open"))
        return NULL;
    struct context *made = calloc(1, sizeof *made);
    made->device = device;
    made->ops[11] = (void *)poll_cq;
    made->ops[25] = (void *)post_send;
    return made;
}
int ibv_close_device(struct context *context) { return busy("the device", context->held); }

int ibv_query_device(struct context *context, char *attr) {
    (void)context;
    if (refused("query_device"))
        return errno;
    const char *size = scripted("max_mr_size");
    uint64_t most = size ? strtoull(size, NULL, 10) : UINT64_MAX;
    int qp = 131072, cqe = 4194303, mr = 16777216;
    memset(attr, 0, 232);
    memcpy(attr + 80, &most, 8);
    memcpy(attr + 108, &qp, 4);
    memcpy(attr + 132, &cqe, 4);
    memcpy(attr + 136, &mr, 4);
    return 0;
}

int ibv_query_port(struct context *context, uint8_t port, struct port_attr *attr) {
    (void)context, (void)port;
    if (refused("query_port"))
        return errno;
    attr->state = number("down") ? 1 : 4;
    attr->mtu = 3;
    attr->lid = LID;
    attr->layer = number("infiniband") ? 1 : 2;
    return 0;
}

int ibv_query_gid(struct context *context, uint8_t port, int index, uint8_t *gid) {
    (void)context, (void)port, (void)index;
    if (!scripted("gid"))
        memcpy(gid, GID, 16);
    return 0;
}

struct pd *ibv_alloc_pd(struct context *context) {
    if (refused("alloc_pd"))
        return NULL;
    struct pd *made = calloc(1, sizeof *made);
    made->context = context;
    context->held++;
    return made;
}
int ibv_dealloc_pd(struct pd *pd) {
    pd->context->held--;
    return busy("the domain", pd->held);
}

struct mr *ibv_reg_mr(struct pd *pd, void *addr, size_t length, int access) {
    static uint32_t key = 1;
    (void)access;
    if (refused("reg_mr"))
        return NULL;
    struct mr *made = calloc(1, sizeof *made);
    *made = (struct mr){pd->context, pd, addr, length, 0, key, key};
    by_key[key++ % KEYS] = made;
    pd->held++;
    return made;
}
int ibv_dereg_mr(struct mr *mr) {
    if (refused("dereg_mr"))
        return errno;
    by_key[mr->lkey % KEYS] = NULL;
    mr->pd->held--;
    return 0;
}

struct cq *ibv_create_cq(struct context *context, int entries, void *own, void *channel, int vector) {
    (void)entries, (void)own, (void)channel, (void)vector;
    if (refused("create_cq"))
        return NULL;
    struct cq *made = calloc(1, sizeof *made);
    made->context = context;
    context->held++;
    return made;
}
int ibv_destroy_cq(struct cq *cq) {
    cq->context->held--;
    return busy("the queue", cq->held);
}

struct qp *ibv_create_qp(struct pd *pd, struct init_attr *attr) {
    static uint32_t next = 17;
    if (refused("create_qp"))
        return NULL;
    struct qp *made = calloc(1, sizeof *made);
    made->context = pd->context;
    made->pd = pd;
    made->send = attr->send;
    made->number = next++;
    pd->held++;
    attr->send->held++;
    return made;
}
int ibv_modify_qp(struct qp *qp, struct qp_attr *attr, int mask) {
    static const char *const steps[] = {"", "init", "rtr", "rts"};
    /* What the standard wants of each step (qp.c of the kernel's ib_core). */
    static const int wanted[] = {0, 0x39, 0x129181, 0x12e01};
    if (attr->state != qp->state + 1 || attr->state > 3 || mask != wanted[attr->state])
        return EINVAL;
    if (refused(steps[attr->state]))
        return errno;
    if (attr->state == 2) {
        int global = attr->global && !memcmp(attr->dgid, GID, 16);
        int addressed = global && (!number("infiniband") || attr->dlid == LID);
        int classed = attr->class == number("traffic_class") && attr->sl == number("service_level");
        if (!addressed || !classed || attr->mtu != 3 || !attr->port)
            return EINVAL;
    }
    qp->state = attr->state;
    return 0;
}
int ibv_destroy_qp(struct qp *qp) {
    qp->pd->held--;
    qp->send->held--;
    return 0;
}

/* The memory lies where the caller says that it does: an invented GPU's is the host's. */
struct mr *ibv_reg_dmabuf_mr(struct pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    if (refused("reg_dmabuf"))
        return NULL;
    if (offset || fcntl(fd, F_GETFD) < 0) {
        errno = EBADF;
        return NULL;
    }
    return ibv_reg_mr(pd, (void *)(uintptr_t)iova, length, access);
}
