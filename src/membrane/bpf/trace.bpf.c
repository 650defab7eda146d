/* What the processes of sandboxes do, as the kernel saw it: one set of programs for all sandboxes at once.
 *
 * Scope: `members` holds the thread group id of every process of every sandbox.  A sandbox starts with the process
 * that user space names in `seeds`; its children follow by fork.  Each sandbox has a slot: a setting, counters and two
 * rings, one for what must be kept, one for the bulk of opens, so that a flood of opens pushes out no exec.
 *
 * System calls are looked at when they leave (sys_exit): the result is known, the registers still hold the arguments,
 * and a call that seccomp refused comes by here although it never reaches sys_enter.  `calls` says for each number
 * which program has it and where its arguments are.
 *
 * Nothing is decided here.  A path that names an open file is walked from the kernel's own dentries; a path that
 * exists only as an argument (removed, renamed, refused) is what the caller wrote, with its base directory.
 */
#include "kernel.h"
#include "wire.h"

char LICENSE[] SEC("license") = "GPL";

#define COMPONENTS 48
#define NESTING 3
#define LEVELS 8 /* pid namespaces inside each other that are looked through; the kernel allows 32 */
#define QUIET 240000000ull /* ns between two wake-ups of the reader */
#define TELL_AGAIN 10000000000ull /* ns after which a repeated open is told again, with its count */

#define SEE_NOISE 1 /* slot.flags: also failed look-ups */
#define SEE_REPEATS 2

/* kept, bulk: bytes of finished records in each ring, since the sandbox began.  Where the writer's position in the ring
 * says the same, no record is half written, and the reader need not look at each. */
struct slot { u64 id, woken, population, kept, bulk; u32 flags, wake, level, wake_bulk; };
struct member { u64 id, start; u32 slot, level, pid, ppid; };
struct seed { u32 ns, pid; };
struct place { u64 id; u32 slot, pad; };
struct counters { u64 n[COUNTERS]; };
struct opened { u64 id, inode; u32 device, name, flags, process; };
struct repeats { u64 told, count; };
/* handler, then places of arguments (9: none): directory fd, path, second fd, second path, two values */
struct call { u8 handler, fd, path, fd2, path2, x1, x2, flags; };
#define FAILED_ONLY 1
#define OPEN_HOW 2
#define MANY 4

/* State of a walk lives in map memory, not in registers: every turn of the loop then looks the same to the verifier,
 * and 48 components cost it 25,000 instructions instead of more than its limit. */
struct walk { struct vfsmount *mount, *root_mount; struct dentry *top, *at, *root; u64 offset, limit, cut; };
/* What do_walk is to walk for a handler: from `first`, whose length is the part `goal` of the event (0: the rest), then
 * from `second`; `length` is how much of the text there is. */
struct start { struct vfsmount *mount; struct dentry *at; };
struct todo { struct start first, second; u64 length; u32 goal, bulk, kind, pad; };
struct scratch { u32 busy, pad; struct walk walk; struct todo todo; struct event e; };

struct { __uint(type, ARRAY); __uint(max_entries, SLOTS); __uint(map_flags, MMAPABLE); __type(key, u32); __type(value, struct slot); } slots SEC(".maps");
struct { __uint(type, HASH); __uint(max_entries, 65536); __uint(map_flags, NO_PREALLOC); __type(key, u32); __type(value, struct member); } members SEC(".maps");
struct { __uint(type, HASH); __uint(max_entries, SLOTS); __type(key, struct seed); __type(value, struct place); } seeds SEC(".maps");
struct { __uint(type, HASH); __uint(max_entries, SLOTS); __type(key, u64); __type(value, struct place); } cgroups SEC(".maps");
/* 0: seeds planted, 1: seeds that came up, 2: cgroups watched */
struct { __uint(type, ARRAY); __uint(max_entries, 4); __type(key, u32); __type(value, u64); } control SEC(".maps");
struct { __uint(type, PERCPU_ARRAY); __uint(max_entries, SLOTS); __type(key, u32); __type(value, struct counters); } counted SEC(".maps");
struct { __uint(type, LRU_HASH); __uint(max_entries, 16384); __type(key, struct opened); __type(value, struct repeats); } seen SEC(".maps");
struct { __uint(type, PERCPU_ARRAY); __uint(max_entries, NESTING); __type(key, u32); __type(value, struct scratch); } scratches SEC(".maps");
struct { __uint(type, ARRAY); __uint(max_entries, 1024); __type(key, u32); __type(value, struct call); } calls SEC(".maps");
struct { __uint(type, PROG_ARRAY); __uint(max_entries, 16); __type(key, u32); __type(value, u32); } handlers SEC(".maps");
/* whose processes may be traced; 0: everybody's.  User space freezes it, so that a set that was given to a user stays
 * that user's whatever the user writes into the other maps. */
struct { __uint(type, ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, u32); } owner SEC(".maps");
/* rings[2 * slot]: must keep, rings[2 * slot + 1]: bulk */
struct ring { __uint(type, RINGBUF); __uint(max_entries, 4096); };
struct { __uint(type, HASH_OF_MAPS); __uint(max_entries, 2 * SLOTS); __type(key, u32); __type(value, u32); __array(values, struct ring); } rings SEC(".maps");

INLINE void count(u32 slot, u32 what, u64 n)
{
	struct counters *c = map_lookup(&counted, &slot);
	if (c && what < COUNTERS) c->n[what] += n;
}
INLINE u64 control_value(u32 key)
{
	u64 *value = map_lookup(&control, &key);
	return value ? *value : 0;
}

/* ------------------------------------------------------------------ scope */

/* Pointers are read and not followed as typed ones: the verifier looks through all types of the kernel for each of
 * those (btf_nested_type_is_trusted, kernel/bpf/btf.c), which was most of what a load took. */
#define POINTER(type, base, field) ({ __typeof__(((type *)0)->field) _p = NULL; READ(_p, base, type, field); _p; })

/* Is it a process that the owner of this set could not look into either?  As ptrace(2): other uids, or capabilities
 * over the host. */
INLINE int foreign(struct task_struct *t)
{
	u32 key = 0, *uid = map_lookup(&owner, &key);
	u64 capabilities = 0; u32 real = 0, saved = 0, effective = 0; s32 level = 0;
	if (!uid || !*uid) return 0;
	const struct cred *c = POINTER(struct task_struct, t, cred);
	struct user_namespace *owner_of = POINTER(struct cred, c, user_ns);
	READ(real, c, struct cred, uid.val); READ(saved, c, struct cred, suid.val); READ(effective, c, struct cred, euid.val);
	if (real != *uid || saved != *uid || effective != *uid) return 1;
	READ(capabilities, c, struct cred, cap_permitted);
	READ(level, owner_of, struct user_namespace, level);
	return capabilities && !level;
}
INLINE u32 pid_at(struct pid *pid, u32 level)
{
	struct upid *numbers = (void *)pid + OFFSET(struct pid, numbers);
	u32 nr = 0;
	READ(nr, numbers + (level & (LEVELS - 1)), struct upid, nr);
	return nr;
}
INLINE u32 level_of(struct pid *pid)
{
	u32 level = 0;
	READ(level, pid, struct pid, level);
	return level;
}
INLINE struct member *admit(struct task_struct *leader, struct slot *s, u64 id, u32 slot, u32 level, u32 parent)
{
	struct member m = {};
	struct pid *pid = POINTER(struct task_struct, leader, thread_pid);
	u32 tgid = 0, own = level_of(pid);
	READ(tgid, leader, struct task_struct, tgid);
	READ(m.start, leader, struct task_struct, start_boottime);
	m.id = id; m.slot = slot; m.ppid = parent;
	m.level = level < own ? level : own;
	m.pid = pid_at(pid, m.level);
	if (map_update(&members, &tgid, &m, 1 /* BPF_NOEXIST */)) {
		if (map_lookup(&members, &tgid)) map_update(&members, &tgid, &m, 0); /* of a sandbox that is gone */
		else { count(slot, LOST_SCOPE, 1); return NULL; }
	}
	__sync_fetch_and_add(&s->population, 1);
	return map_lookup(&members, &tgid);
}
INLINE struct slot *slot_of(struct member *m)
{	/* NULL: the sandbox is gone and its slot may have another one */
	u32 key = m->slot;
	struct slot *s = map_lookup(&slots, &key);
	return s && s->id == m->id ? s : NULL;
}
/* Is this the process that user space named?  It named it as its own pid namespace counts. */
INLINE struct member *seeded(struct task_struct *t)
{
	struct task_struct *leader = POINTER(struct task_struct, t, group_leader);
	struct pid *pid = POINTER(struct task_struct, leader, thread_pid);
	struct upid *numbers = (void *)pid + OFFSET(struct pid, numbers);
	u32 level = level_of(pid), slot = 0, came_up = 1;
	u64 id = 0;
	struct seed key = {};
	for (u32 i = 0; i < LEVELS && i <= level; i++) {
		struct pid_namespace *ns = NULL;
		READ(key.pid, numbers + i, struct upid, nr);
		READ(ns, numbers + i, struct upid, ns);
		READ(key.ns, ns, struct pid_namespace, ns.inum);
		struct place *p = map_lookup(&seeds, &key);
		if (!p) continue;
		id = p->id; slot = p->slot;
		break;
	}
	if (!id || foreign(t)) return NULL;
	if (map_delete(&seeds, &key)) return NULL; /* another thread was first */
	u64 *n = map_lookup(&control, &came_up);
	if (n) __sync_fetch_and_add(n, 1);
	struct slot *s = map_lookup(&slots, &slot);
	if (!s || s->id != id) return NULL;
	s->level = level;
	return admit(leader, s, id, slot, level, 0);
}
INLINE struct member *in_cgroup(struct task_struct *t)
{
	struct place *p = NULL;
	for (int level = 1; level < 8 && !p; level++) {
		u64 id = ancestor_cgroup_id(level);
		if (!id) return NULL;
		p = map_lookup(&cgroups, &id);
	}
	if (!p || foreign(t)) return NULL;
	u32 slot = p->slot;
	struct slot *s = map_lookup(&slots, &slot);
	if (!s || s->id != p->id) return NULL;
	return admit(POINTER(struct task_struct, t, group_leader), s, s->id, slot, s->level, 0);
}
INLINE struct member *member(struct task_struct *t)
{
	u32 tgid = t->tgid;
	struct member *m = map_lookup(&members, &tgid);
	if (!m && control_value(0) != control_value(1)) m = seeded(t);
	return m;
}
/* as member(), for the rare events */
INLINE struct member *member_or_cgroup(struct task_struct *t)
{
	struct member *m = member(t);
	if (!m && control_value(2)) m = in_cgroup(t);
	return m;
}

/* ------------------------------------------------------------------ events */

/* Programs do not interrupt each other on today's kernels; if they do, the second one takes the next scratch. */
INLINE struct scratch *begin(u16 type, u32 kind, struct member *m, struct slot *s)
{
	u32 key = 0;
	struct scratch *x = map_lookup(&scratches, &key);
	if (x && x->busy) { key = 1; x = map_lookup(&scratches, &key); }
	if (x && x->busy) { key = 2; x = map_lookup(&scratches, &key); }
	if (!x) return NULL;
	if (x->busy) { count(m->slot, LOST_NESTED, 1); return NULL; }
	x->busy = 1;
	struct event *e = &x->e;
	u64 id = get_pid_tgid();
	e->type = type; e->l1 = e->l2 = e->l3 = 0;
	e->pid = m->pid; e->ppid = m->ppid; e->start = m->start;
	e->tgid = id >> 32; e->tid = (u32)id; e->uid = (u32)get_uid_gid();
	e->nr = -1; e->aux = 0; e->count = 1; e->result = 0; e->a = e->b = 0;
	e->time = boot_time();
	get_comm(e->comm, sizeof e->comm);
	return x;
}
/* The scratch that this chain of programs took: that of its own thread, whoever else has one on this processor. */
INLINE struct scratch *begun(void)
{
	u32 tid = (u32)get_pid_tgid();
	for (u32 i = 0; i < NESTING; i++) {
		u32 key = i;
		struct scratch *x = map_lookup(&scratches, &key);
		if (x && x->busy && x->e.tid == tid) return x;
	}
	return NULL;
}
/* bulk: which ring, kind: under what it is counted when the ring is full */
INLINE void end(struct scratch *x, u64 length, struct member *m, struct slot *s, u32 bulk, u32 kind)
{
	u32 key = 2 * (m->slot & (SLOTS - 1)) + bulk;
	void *ring = map_lookup(&rings, &key);
	struct event *e = &x->e;
	if (ring) {
		/* A wake-up costs ten times what an event costs: one for the first event after a pause and one when a quarter
		 * is full; in between the reader comes by itself. */
		u64 flags = 1; /* BPF_RB_NO_WAKEUP */
		if (e->time - s->woken > QUIET || ring_query(ring, 0) >= (bulk ? s->wake_bulk : s->wake)) {
			s->woken = e->time;
			flags = 2; /* BPF_RB_FORCE_WAKEUP */
		}
		length = BOUND(length, 0x3fff);
		if (ring_output(ring, e, HEADER + length, flags)) count(m->slot, kind, 1);
		else {
			__sync_fetch_and_add(bulk ? &s->bulk : &s->kept, (HEADER + length + 15) & ~7ull); /* with 8 before it, in eights */
			count(m->slot, EVENTS, 1); count(m->slot, BYTES, HEADER + length);
		}
	}
	x->busy = 0;
}

/* ------------------------------------------------------------------ paths */

/* Append the names from a dentry up to the caller's root, each followed by '/', innermost first; the reader turns
 * them round.  Crosses mounts.  When there are too many, a name of one NUL stands for the outer ones. */
INLINE u64 walk(struct scratch *x, u64 offset, struct vfsmount *mount, struct dentry *at, struct task_struct *t)
{
	struct walk *w = &x->walk;
	struct event *e = &x->e;
	if (!mount || !at) return offset;
	struct fs_struct *fs = POINTER(struct task_struct, t, fs);
	READ(w->root_mount, fs, struct fs_struct, root.mnt); READ(w->root, fs, struct fs_struct, root.dentry);
	w->mount = mount; w->at = at; w->offset = offset; w->limit = offset + 4000; w->cut = 1;
	READ(w->top, mount, struct vfsmount, mnt_root);
	for (int i = 0; i < COMPONENTS; i++) {
		struct { u32 hash, len; const u8 *name; } q; struct dentry *parent;
		at = w->at; mount = w->mount;
		if (at == w->root && mount == w->root_mount) { w->cut = 0; break; }
		READ(parent, at, struct dentry, d_parent);
		if (at == w->top || at == parent) { /* the top of a mount: go on where it is mounted */
			struct mount *m = (void *)mount - OFFSET(struct mount, mnt), *below = NULL;
			READ(below, m, struct mount, mnt_parent);
			if (below == m || !below) { w->cut = 0; break; }
			READ(w->at, m, struct mount, mnt_mountpoint);
			mount = (void *)below + OFFSET(struct mount, mnt);
			w->mount = mount;
			READ(w->top, mount, struct vfsmount, mnt_root);
			continue;
		}
		if (READ(q, at, struct dentry, d_name)) break;
		u64 n = BOUND(q.len, 255), o = BOUND(w->offset, 0x3fff);
		if (o + n > w->limit) break;
		if (read_kernel(e->text + o, n, q.name)) break;
		o += n;
		e->text[o] = '/';
		w->offset = o + 1;
		w->at = parent;
	}
	if (w->cut) {
		u64 o = BOUND(w->offset, 0x3fff);
		e->text[o] = 0;
		e->text[o + 1] = '/';
		w->offset = o + 2;
	}
	return w->offset;
}
INLINE struct file *file_of(struct task_struct *t, u32 fd)
{
	struct files_struct *open = POINTER(struct task_struct, t, files);
	struct fdtable *table; struct file **files, *f = NULL;
	u32 most = 0;
	if (!open) return NULL;
	table = POINTER(struct files_struct, open, fdt);
	READ(most, table, struct fdtable, max_fds);
	if (fd >= most) return NULL;
	files = POINTER(struct fdtable, table, fd);
	read_kernel(&f, sizeof f, files + fd);
	return f;
}
INLINE void start_at_file(struct start *start, struct file *f)
{
	start->mount = NULL; start->at = NULL;
	if (!f) return;
	READ(start->mount, f, struct file, f_path.mnt);
	READ(start->at, f, struct file, f_path.dentry);
}
INLINE void start_at_directory(struct start *start, struct task_struct *t)
{
	struct fs_struct *fs = POINTER(struct task_struct, t, fs);
	READ(start->mount, fs, struct fs_struct, pwd.mnt);
	READ(start->at, fs, struct fs_struct, pwd.dentry);
}
#define AT_FDCWD -100
/* where a relative path starts: the working directory or the directory behind a descriptor */
INLINE void start_at_base(struct start *start, int fd, struct task_struct *t)
{
	if (fd == AT_FDCWD) start_at_directory(start, t);
	else start_at_file(start, file_of(t, fd));
}
INLINE u64 user_path(struct scratch *x, u64 offset, u64 address, struct member *m)
{
	offset = BOUND(offset, 0x3fff);
	long n = read_user_string(x->e.text + offset, 4096, (void *)address);
	if (n <= 0) { count(m->slot, UNREADABLE, 1); return offset; }
	return offset + BOUND(n - 1, 4095);
}
/* Begin an event that ends with paths; without a start it has none. */
INLINE struct scratch *begin_path(u16 type, u32 kind, u32 bulk, struct member *m, struct slot *s)
{
	struct scratch *x = begin(type, kind, m, s);
	if (!x) return NULL;
	struct todo *todo = &x->todo;
	todo->first.mount = todo->second.mount = NULL;
	todo->first.at = todo->second.at = NULL;
	todo->length = 0;
	todo->goal = 0; todo->bulk = bulk; todo->kind = kind;
	x->e.text[0] = 0;
	return x;
}
/* the argument -> l1, its base when it is relative -> l2; without one (fchmod) the open file stands for its base */
INLINE void path_argument(struct scratch *x, int fd, int named, u64 address, struct task_struct *t, struct member *m)
{
	struct todo *todo = &x->todo;
	if (named) todo->length = user_path(x, 0, address, m);
	x->e.l1 = todo->length;
	todo->goal = 2;
	if (x->e.text[0] != '/') start_at_base(&todo->first, fd, t);
}

/* ------------------------------------------------------------------ system calls */

#define TS_COMPAT 2 /* thread_info.status: the call came by the 32-bit table */
INLINE u32 number_of(struct task_struct *t, struct pt_regs *r)
{
	u32 nr = (u32)r->orig_ax;
	return t->thread_info.status & TS_COMPAT ? 512 + (nr & 511) : nr;
}
INLINE u64 argument(struct task_struct *t, struct pt_regs *r, u32 i)
{
	if (t->thread_info.status & TS_COMPAT) {
		switch (i) {
		case 0: return (u32)r->bx;
		case 1: return (u32)r->cx;
		case 2: return (u32)r->dx;
		case 3: return (u32)r->si;
		case 4: return (u32)r->di;
		case 5: return (u32)r->bp;
		}
		return 0;
	}
	switch (i) {
	case 0: return r->di;
	case 1: return r->si;
	case 2: return r->dx;
	case 3: return r->r10;
	case 4: return r->r8;
	case 5: return r->r9;
	}
	return 0;
}
INLINE int directory(struct task_struct *t, struct pt_regs *r, u32 i)
{
	return i > 5 ? AT_FDCWD : (int)argument(t, r, i);
}

/* What every handler starts with.  The dispatcher has looked all of it up before: it cannot be missing. */
#define CALL_OR_RETURN(ctx) \
	struct task_struct *t = current_task(); \
	struct pt_regs *r = (void *)ctx[0]; \
	s64 result = (s64)ctx[1]; \
	u32 nr = number_of(t, r), tgid = t->tgid; \
	struct call *c = map_lookup(&calls, &nr); \
	struct member *m = map_lookup(&members, &tgid); \
	if (!c || !m) return 0; \
	struct slot *s = slot_of(m); \
	if (!s) return 0

#define DO_WALK 8 /* in `handlers`, as in record/calls.py */
/* The end of a handler that has paths.  Only where somebody took do_walk out of the map it goes on. */
#define WALK(ctx, x) do { \
	tail_call(ctx, &handlers, DO_WALK); \
	count(m->slot, (x)->todo.kind, 1); \
	(x)->busy = 0; \
	return 0; \
} while (0)

SEC("tp_btf/sys_exit") int on_sys_exit(u64 *ctx)
{
	struct task_struct *t = current_task();
	struct member *m = member(t);
	if (!m) return 0;
	struct pt_regs *r = (void *)ctx[0];
	u32 nr = number_of(t, r);
	struct call *c = map_lookup(&calls, &nr);
	if (!c || !c->handler) return 0;
	s64 result = (s64)ctx[1];
	if ((c->flags & FAILED_ONLY) && result >= 0) return 0;
	tail_call(ctx, &handlers, c->handler);
	return 0;
}

#define ENOENT 2
#define ENOTDIR 20
INLINE int is_noise(struct member *m, struct slot *s, s64 result)
{	/* a program that looks for a file along a search path */
	if ((result != -ENOENT && result != -ENOTDIR) || (s->flags & SEE_NOISE)) return 0;
	count(m->slot, LEFT_NOISE, 1);
	return 1;
}
#define O_ACCMODE 3
#define O_CREAT 0100
#define O_EXCL 0200
#define O_TRUNC 01000
/* How many opens the next event stands for; 0: none, it was told a moment ago.  Reads are told once for the whole
 * sandbox, everything else once per process. */
INLINE u32 told_before(struct slot *s, struct member *m, struct opened *key)
{
	struct repeats *old = map_lookup(&seen, key), first = {};
	u64 now = boot_time();
	if (!old) {
		first.told = now;
		map_update(&seen, key, &first, 0);
		return 1;
	}
	u64 n = old->count + 1;
	if (now - old->told < TELL_AGAIN) {
		__sync_fetch_and_add(&old->count, 1);
		count(m->slot, LEFT_REPEATED, 1);
		return 0;
	}
	old->told = now; old->count = 0;
	return (u32)n;
}
SEC("tp_btf/sys_exit") int do_open(u64 *ctx)
{
	CALL_OR_RETURN(ctx);
	if (result >= 0) {
		struct file *f = file_of(t, (u32)result);
		struct inode *inode = NULL; struct super_block *super = NULL; struct dentry *d = NULL;
		struct { u32 hash, len; } q = {};
		struct opened key = {}; u16 mode = 0; u32 times = 1;
		if (!f) return 0;
		READ(inode, f, struct file, f_inode); READ(key.flags, f, struct file, f_flags);
		READ(key.inode, inode, struct inode, i_ino); READ(mode, inode, struct inode, i_mode);
		READ(super, inode, struct inode, i_sb); READ(key.device, super, struct super_block, s_dev);
		READ(d, f, struct file, f_path.dentry); READ(q, d, struct dentry, d_name);
		key.name = q.hash; key.id = m->id;
		/* f_flags has lost those that say what the caller wanted */
		u64 asked = argument(t, r, c->x1);
		if (c->flags & OPEN_HOW) { u64 p = asked; asked = 0; read_user(&asked, 8, (void *)p); }
		if (c->x1 > 5) asked = O_CREAT | O_TRUNC | 1; /* creat(2) */
		u32 flags = key.flags | ((u32)asked & (O_CREAT | O_EXCL | O_TRUNC));
		key.flags = flags;
		if (flags & (O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC)) key.process = tgid;
		if (!(s->flags & SEE_REPEATS)) times = told_before(s, m, &key);
		if (!times) return 0;
		struct scratch *x = begin_path(OPEN, LOST_FILE, 1, m, s);
		if (!x) return 0;
		struct event *e = &x->e;
		e->nr = nr; e->result = result; e->aux = flags; e->count = times;
		e->a = key.inode; e->b = key.device | ((u64)mode << 32);
		x->todo.goal = 1;
		start_at_file(&x->todo.first, f);
		WALK(ctx, x);
	}
	if (is_noise(m, s, result)) return 0;
	struct scratch *x = begin_path(OPEN, LOST_FILE, 0, m, s);
	if (!x) return 0;
	struct event *e = &x->e;
	u64 flags = c->x1 > 5 ? O_CREAT | O_TRUNC | 1 : argument(t, r, c->x1);
	if (c->flags & OPEN_HOW) { u64 p = flags; flags = 0; read_user(&flags, 8, (void *)p); }
	e->nr = nr; e->result = result; e->aux = (u32)flags;
	path_argument(x, directory(t, r, c->fd), c->path < 6, argument(t, r, c->path), t, m);
	WALK(ctx, x);
}
SEC("tp_btf/sys_exit") int do_path(u64 *ctx)
{
	CALL_OR_RETURN(ctx);
	u16 type = c->flags & FAILED_ONLY ? EXEC_FAILED : PATH;
	if (type == EXEC_FAILED && is_noise(m, s, result)) return 0;
	struct scratch *x = begin_path(type, LOST_CHANGE, 0, m, s);
	if (!x) return 0;
	struct event *e = &x->e;
	e->nr = nr; e->result = result; e->a = argument(t, r, c->x1); e->b = argument(t, r, c->x2);
	path_argument(x, directory(t, r, c->fd), c->path < 6, argument(t, r, c->path), t, m);
	WALK(ctx, x);
}
SEC("tp_btf/sys_exit") int do_path2(u64 *ctx)
{	/* first -> l1, second -> l2, base of the first -> l3, base of the second: the rest */
	CALL_OR_RETURN(ctx);
	struct scratch *x = begin_path(PATH2, LOST_CHANGE, 0, m, s);
	if (!x) return 0;
	struct event *e = &x->e;
	struct todo *todo = &x->todo;
	e->nr = nr; e->result = result; e->aux = argument(t, r, c->x1);
	u64 o1 = 0, o2;
	if (c->path < 6) o1 = user_path(x, 0, argument(t, r, c->path), m); /* else the open file stands for its base */
	if (e->text[0] != '/') start_at_base(&todo->first, directory(t, r, c->fd), t);
	e->l1 = o1; o1 = BOUND(o1, 4095);
	o2 = user_path(x, o1, argument(t, r, c->path2), m);
	e->l2 = o2 - o1;
	if (e->text[o1] != '/') start_at_base(&todo->second, directory(t, r, c->fd2), t);
	todo->goal = 3; todo->length = o2;
	WALK(ctx, x);
}
/* Every path of a system call is walked here: the verifier's time goes into the loop of walk(). */
SEC("tp_btf/sys_exit") int do_walk(u64 *ctx)
{
	struct task_struct *t = current_task();
	u32 tgid = t->tgid;
	struct scratch *x = begun();
	if (!x) return 0;
	struct member *m = map_lookup(&members, &tgid);
	struct slot *s = m ? slot_of(m) : NULL;
	if (!s) { x->busy = 0; return 0; }
	struct event *e = &x->e;
	struct todo *todo = &x->todo;
	u64 from = todo->length, length = walk(x, from, todo->first.mount, todo->first.at, t);
	u16 part = length - from;
	if (todo->goal == 1) e->l1 = part;
	if (todo->goal == 2) e->l2 = part;
	if (todo->goal == 3) e->l3 = part;
	todo->length = length;
	if (todo->second.mount) {
		todo->first.mount = todo->second.mount; todo->first.at = todo->second.at;
		todo->second.mount = NULL;
		todo->goal = 0;
		tail_call(ctx, &handlers, DO_WALK);
	}
	end(x, length, m, s, todo->bulk, todo->kind);
	return 0;
}
INLINE int read_endpoint(struct endpoint *p, struct task_struct *t, u32 fd)
{
	struct file *f = file_of(t, fd); u16 mode = 0; struct inode *inode = NULL; void *private = NULL; struct sock *sk = NULL;
	if (!f || READ(inode, f, struct file, f_inode) || READ(mode, inode, struct inode, i_mode)) return 0;
	if ((mode & 0170000) != 0140000) return 0; /* S_ISSOCK */
	READ(private, f, struct file, private_data);
	READ(sk, private, struct socket, sk);
	if (!sk) return 0;
	READ(p->type, sk, struct sock, sk_type); READ(p->protocol, sk, struct sock, sk_protocol);
	READ(p->family, sk, struct sock, __sk_common.skc_family);
	READ(p->peer_port, sk, struct sock, __sk_common.skc_dport); READ(p->port, sk, struct sock, __sk_common.skc_num);
	READ(p->peer4, sk, struct sock, __sk_common.skc_daddr); READ(p->own4, sk, struct sock, __sk_common.skc_rcv_saddr);
	if (p->family == 10) READ(p->peer6, sk, struct sock, __sk_common.skc_v6_daddr);
	return 1;
}
SEC("tp_btf/sys_exit") int do_socket(u64 *ctx)
{	/* connect, bind */
	CALL_OR_RETURN(ctx);
	struct endpoint p = {};
	struct scratch *x = begin(SOCKET, LOST_SOCKET, m, s);
	if (!x) return 0;
	struct event *e = &x->e;
	e->nr = nr; e->result = result; e->aux = argument(t, r, 0);
	read_endpoint(&p, t, (u32)argument(t, r, 0));
	__builtin_memcpy(e->text, &p, sizeof p);
	u64 n = (u32)argument(t, r, c->x1);
	if (n > 128) n = 128;
	n = BOUND(n, 255);
	if (read_user(e->text + ENDPOINT, n, (void *)argument(t, r, c->path))) n = 0;
	e->l1 = n;
	end(x, ENDPOINT + n, m, s, 0, LOST_SOCKET);
	return 0;
}
/* A datagram with an address of its own; one on a connected socket is covered by its connect. */
INLINE void datagram(struct task_struct *t, struct member *m, struct slot *s, u32 nr, s64 result, struct endpoint *p,
                     u64 name, u64 name_length)
{
	struct scratch *x = begin(SEND, LOST_SOCKET, m, s);
	if (!x) return;
	struct event *e = &x->e;
	u64 n = name_length > 128 ? 128 : name_length;
	e->nr = nr; e->result = result;
	__builtin_memcpy(e->text, p, sizeof *p);
	n = BOUND(n, 255);
	if (read_user(e->text + ENDPOINT, n, (void *)name)) n = 0;
	e->l1 = n;
	end(x, ENDPOINT + n, m, s, 0, LOST_SOCKET);
}
SEC("tp_btf/sys_exit") int do_send(u64 *ctx)
{	/* sendto(fd, data, length, flags, name, name length) */
	CALL_OR_RETURN(ctx);
	struct endpoint p = {};
	u64 name = argument(t, r, c->path2);
	if (!name || !read_endpoint(&p, t, (u32)argument(t, r, 0)) || p.type == 1) return 0;
	datagram(t, m, s, nr, result, &p, name, (u32)argument(t, r, c->x2));
	return 0;
}
struct user_msghdr { u64 name; u32 name_length, pad; u64 rest[5]; };
SEC("tp_btf/sys_exit") int do_message(u64 *ctx)
{	/* sendmsg(fd, message, flags), sendmmsg(fd, messages, count, flags): the first one speaks for all */
	CALL_OR_RETURN(ctx);
	struct endpoint p = {}; struct user_msghdr h = {};
	if (read_user(&h, sizeof h, (void *)argument(t, r, 1)) || !h.name) return 0;
	if (!read_endpoint(&p, t, (u32)argument(t, r, 0)) || p.type == 1) return 0;
	datagram(t, m, s, nr, result, &p, h.name, h.name_length);
	return 0;
}
SEC("tp_btf/sys_exit") int do_refused(u64 *ctx)
{	/* calls that only matter when they are refused: EPERM, EACCES, ENOSYS and the two for address families */
	CALL_OR_RETURN(ctx);
	if (result != -1 && result != -13 && result != -38 && result != -97 && result != -93) return 0;
	struct scratch *x = begin(CALL, LOST_CALL, m, s);
	if (!x) return 0;
	struct event *e = &x->e;
	e->nr = nr; e->result = result; e->a = argument(t, r, 0); e->b = argument(t, r, 1);
	end(x, 0, m, s, 0, LOST_CALL);
	return 0;
}

/* ------------------------------------------------------------------ processes */

SEC("tp_btf/sched_process_fork") int on_fork(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	struct member *m = member_or_cgroup(parent);
	if (!m || child->tgid == parent->tgid) return 0; /* a thread */
	struct slot *s = slot_of(m);
	if (!s) return 0;
	struct member *new = admit(child, s, m->id, m->slot, m->level, m->pid);
	if (!new) return 0;
	u32 pid = new->pid; u64 start = new->start;
	struct scratch *x = begin(FORK, LOST_PROCESS, m, s);
	if (!x) return 0;
	struct event *e = &x->e;
	e->aux = pid; e->a = start; e->b = child->tgid;
	end(x, 0, m, s, 0, LOST_PROCESS);
	return 0;
}
SEC("tp_btf/sched_process_exec") int on_exec(u64 *ctx)
{	/* name -> l1, arguments -> l2, working directory -> l3, the program's own path: the rest */
	struct task_struct *t = (void *)ctx[0];
	struct linux_binprm *b = (void *)ctx[2];
	struct member *m = member_or_cgroup(t);
	if (!m) return 0;
	struct slot *s = slot_of(m);
	if (!s) return 0;
	if (foreign(t)) { /* it gained privileges: from here on it is none of the owner's business */
		u32 tgid = t->tgid;
		if (!map_delete(&members, &tgid)) __sync_fetch_and_add(&s->population, -1ll);
		return 0;
	}
	struct scratch *x = begin(EXEC, LOST_PROCESS, m, s);
	if (!x) return 0;
	struct event *e = &x->e;
	struct mm_struct *mm = POINTER(struct task_struct, t, mm);
	const char *filename = POINTER(struct linux_binprm, b, filename), *interp = POINTER(struct linux_binprm, b, interp);
	long n = read_kernel_string(e->text, 4096, filename);
	u64 offset = n > 0 ? BOUND(n - 1, 4095) : 0;
	e->l1 = offset;
	u64 from = 0, length = 0;
	READ(from, mm, struct mm_struct, arg_start); READ(length, mm, struct mm_struct, arg_end);
	length -= from;
	e->aux = length > 4095 ? (u32)length : 0; /* true length of arguments that were cut */
	if (length > 4095) length = 4095;
	length = BOUND(length, 4095);
	if (read_user(e->text + offset, length, (void *)from)) length = 0;
	e->l2 = length;
	offset += length;
	e->a = filename != interp; /* a script: the program is its interpreter */
	struct start start = {};
	start_at_directory(&start, t);
	u64 after = walk(x, offset, start.mount, start.at, t);
	e->l3 = after - offset;
	start_at_file(&start, POINTER(struct mm_struct, mm, exe_file));
	after = walk(x, after, start.mount, start.at, t);
	end(x, after, m, s, 0, LOST_PROCESS);
	return 0;
}
SEC("tp_btf/sched_process_exit") int on_exit(u64 *ctx)
{
	struct task_struct *t = (void *)ctx[0];
	u32 tgid = t->tgid;
	struct member *found = map_lookup(&members, &tgid), copy, *m = &copy;
	if (!found) return 0;
	struct signal_struct *group = POINTER(struct task_struct, t, signal);
	s32 live = 0;
	READ(live, group, struct signal_struct, live.counter);
	if (live) return 0; /* other threads are left */
	copy = *found;
	if (map_delete(&members, &tgid)) return 0; /* two last threads: the other one was first */
	struct slot *s = slot_of(m);
	if (!s) return 0;
	__sync_fetch_and_add(&s->population, -1ll);
	struct scratch *x = begin(EXIT, LOST_PROCESS, m, s);
	if (!x) return 0;
	x->e.result = t->exit_code;
	end(x, 0, m, s, 0, LOST_PROCESS);
	return 0;
}
