/* The parts of the kernel that the tracing programs read, declared by hand.
 *
 * Order and size here mean nothing: the loader (bpf/programs.py) rewrites every offset for the running kernel from its
 * BTF (CO-RE).  Only names count, and that a field is declared as wide as it is.  Helpers are called by number
 * (uapi/linux/bpf.h, enum bpf_func_id), so nothing has to be installed to compile this.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;
typedef signed long long s64;

#define CORE __attribute__((preserve_access_index))
#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define NULL ((void *)0)

struct task_struct;
static void *(*const map_lookup)(void *, const void *) = (void *)1;
static long (*const map_update)(void *, const void *, const void *, u64) = (void *)2;
static long (*const map_delete)(void *, const void *) = (void *)3;
static long (*const tail_call)(void *, void *, u32) = (void *)12;
static u64 (*const get_pid_tgid)(void) = (void *)14;
static u64 (*const get_uid_gid)(void) = (void *)15;
static long (*const get_comm)(void *, u32) = (void *)16;
static long (*const read_user)(void *, u32, const void *) = (void *)112;
static long (*const read_kernel)(void *, u32, const void *) = (void *)113;
static long (*const read_user_string)(void *, u32, const void *) = (void *)114;
static long (*const read_kernel_string)(void *, u32, const void *) = (void *)115;
static u64 (*const ancestor_cgroup_id)(int) = (void *)123;
static u64 (*const boot_time)(void) = (void *)125;
static long (*const ring_output)(void *, void *, u64, u64) = (void *)130;
static u64 (*const ring_query)(void *, u64) = (void *)134;
static struct task_struct *(*const current_task)(void) = (void *)158;

/* BTF-defined maps, as libbpf writes them */
#define __uint(name, value) int (*name)[value]
#define __type(name, value) __typeof__(value) *name
#define __array(name, value) __typeof__(value) *name[]
enum {
	HASH = 1, ARRAY = 2, PROG_ARRAY = 3, PERCPU_ARRAY = 6, LRU_HASH = 9, HASH_OF_MAPS = 13, RINGBUF = 27,
	NO_PREALLOC = 1, MMAPABLE = 1024,
};

struct qstr { union { struct { u32 hash; u32 len; } CORE; } CORE; const u8 *name; } CORE;
struct super_block { u32 s_dev; } CORE;
struct inode { u16 i_mode; unsigned long i_ino; struct super_block *i_sb; } CORE;
struct dentry { struct dentry *d_parent; struct qstr d_name; } CORE;
struct vfsmount { struct dentry *mnt_root; } CORE;
struct mount { struct mount *mnt_parent; struct dentry *mnt_mountpoint; struct vfsmount mnt; } CORE;
struct path { struct vfsmount *mnt; struct dentry *dentry; } CORE;
struct file { struct path f_path; struct inode *f_inode; u32 f_flags; void *private_data; } CORE;
struct fdtable { u32 max_fds; struct file **fd; } CORE;
struct files_struct { struct fdtable *fdt; } CORE;
struct fs_struct { struct path root; struct path pwd; } CORE;
struct ns_common { u32 inum; } CORE;
struct pid_namespace { struct ns_common ns; } CORE;
struct upid { s32 nr; struct pid_namespace *ns; } CORE;
struct pid { u32 level; struct upid numbers[1]; } CORE;
typedef struct { s32 counter; } CORE atomic_t;
struct signal_struct { atomic_t live; } CORE;
struct mm_struct { unsigned long arg_start, arg_end; struct file *exe_file; } CORE;
typedef struct { u32 val; } CORE kuid_t;
struct user_namespace { s32 level; } CORE;
struct cred { kuid_t uid, suid, euid; u64 cap_permitted; struct user_namespace *user_ns; } CORE;
struct thread_info { u32 status; } CORE;
struct task_struct {
	struct thread_info thread_info;
	s32 pid, tgid, exit_code;
	u64 start_boottime;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	const struct cred *cred;
	struct files_struct *files;
	struct fs_struct *fs;
	struct signal_struct *signal;
	struct mm_struct *mm;
} CORE;
struct linux_binprm { const char *filename; const char *interp; } CORE;
struct in6_addr { u8 bytes[16]; };
struct sock_common {
	u32 skc_daddr, skc_rcv_saddr;
	u16 skc_dport, skc_num, skc_family;
	struct in6_addr skc_v6_daddr;
} CORE;
struct sock { struct sock_common __sk_common; u16 sk_type; u16 sk_protocol; } CORE;
struct socket { struct sock *sk; } CORE;
/* x86_64; at the exit of a call the registers still hold its arguments */
struct pt_regs { unsigned long di, si, dx, r10, r8, r9, orig_ax, bx, cx, bp; } CORE;

#define OFFSET(type, field) __builtin_preserve_field_info(((type *)0)->field, 0)
/* read one field behind a pointer, its address relocated */
#define READ(to, base, type, field) \
	read_kernel(&(to), sizeof(to), __builtin_preserve_access_index(&((type *)(base))->field))
/* a mask that the verifier sees and the compiler cannot fold away */
#define BOUND(x, mask) ({ u64 _x = (x); asm volatile("%0 &= " #mask : "+r"(_x)); _x; })
