/* What goes through the rings: read by record/decode.py, which holds the same layout (a test compares them). */
#pragma once

#define LAYOUT 1 /* counted up with every change below */
#define SLOTS 128

enum { /* event.type; 0 and from 128 up: records that user space puts between the spans */
	FORK = 1, EXEC, EXIT, OPEN, PATH, PATH2, SOCKET, SEND, EXEC_FAILED, CALL,
};

enum { /* counters.n: first what was lost, by kind, then what was left out on purpose, and totals */
	LOST_PROCESS, LOST_FILE, LOST_CHANGE, LOST_SOCKET, LOST_CALL, LOST_NESTED, LOST_SCOPE, LOST_KINDS = 8,
	LEFT_NOISE = 8, LEFT_REPEATED, EVENTS, BYTES, UNREADABLE, COUNTERS = 16,
};

#define TEXT 16384
struct event {
	u16 type, l1, l2, l3; /* lengths of the first three parts of text */
	u32 pid, ppid;        /* as the sandbox's pid namespace counts */
	u32 tgid, tid;        /* as the kernel counts */
	u32 uid;
	s32 nr;               /* system call; + 512: of the 32-bit table; -1: none */
	u64 time;             /* ns since boot (CLOCK_BOOTTIME) */
	u64 start;            /* of the process, same clock */
	s64 result;
	u64 a, b;
	u32 aux, count;       /* count: identical events that this one stands for */
	char comm[16];
	u8 text[TEXT + 4096];
};
#define HEADER 96

/* of a socket, as the kernel knows it: the first part of SOCKET and SEND */
struct endpoint {
	u16 type, protocol, family, peer_port, port, pad; /* peer_port in network order, port in host order */
	u32 peer4, own4;
	struct in6_addr peer6;
};
#define ENDPOINT 64 /* its place: the address that the call was given follows there */
