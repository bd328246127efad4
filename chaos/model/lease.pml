/*
 * The lease and window protocol for one sid, checked for claim I1: no
 * millisecond of a sid is issued twice.
 *
 * Time is abstracted to one question. Fix any one millisecond X. A
 * base, ceiling or floor is stored as one bit: is it above X? X is inside
 * [base, ceil) exactly when base is 0 and ceil is 1, max() is "or", and a clock
 * is a bit chosen freely at each use. The protocol does nothing else with time,
 * so a complete search covers every X, every window size and every clock,
 * however wrong. What stays bounded is the number of requests and of nodes.
 *
 * The adversary: a request is applied at any time after it was sent or never,
 * whether or not its sender still waits; any reply may be lost; the holder key
 * may vanish at any time; a node may stop in any state and start again
 * without memory, or pause for any time between two steps.
 *
 * -D selects a variant: see run.sh, which lists them all, and README.md.
 */

#ifndef NODES
#define NODES 2                 /* node processes, 2 or 3 */
#endif
#ifndef MAXREQ
#define MAXREQ 4                /* transactions sent in one history, 1 to 8 */
#endif
#ifndef BUMPS
#define BUMPS 0                 /* era bumps outside a restore */
#endif
#ifndef RESTORES
#define RESTORES 0              /* times the store goes back to its backup */
#endif
#ifndef RESERVES
#define RESERVES 0              /* times an operator reserves the sid for a generator outside of the nodes */
#endif
#ifndef PROBE
#define PROBE 0                 /* reached(n) with this n is the error: shows that n can happen */
#endif
#define reached(n) assert(PROBE != n)

/* TRACE(format, a, b) prints a step of a replay (-DTRACE_STEPS) and is nothing in a search. It
   takes no semicolon. */
#ifdef TRACE_STEPS
#define TRACE(f, a, b) printf(f, a, b);
#else
#define TRACE(f, a, b)
#endif

/* A nonce names one attempt of one process. With SHARED_NONCE it is made from an
   identity that two live processes share (a pod's name) and what both can read. */
#ifdef SHARED_NONCE
#define NONCE(attempt) (rev + 1)
#else
#define NONCE(attempt) (attempt + 1)
#endif

/* What holder/s carries. A node's next incarnation uses the same value, which is
   weaker than a lease ID per process start; SHARED_IDENTITY gives all nodes one. */
#if defined(SHARED_IDENTITY) || defined(SHARED_NONCE)
#define ID(i) 1
#else
#define ID(i) (i + 1)
#endif

mtype = { ACQUIRE, RECLAIM, EXTEND, REHOLD, RELEASE };
mtype = { SENT, APPLIED, REFUSED };

/* ---- the store ---------------------------------------------------------- */

typedef Record {                /* window/s */
	byte rev;               /* ModRevision; 0: the key is absent */
	byte nonce;             /* the record's value */
	bit base, ceil
}

typedef Request {               /* a transaction on its way, and its reply */
	mtype kind;
	mtype state;            /* 0: slot is free */
	bit awaited;            /* the sender has not given up */
	byte who;               /* new value of holder/s */
	byte hold;              /* holder/s as compared; 0: absent */
	byte rev, seen;         /* window/s as compared: revision and value */
	byte era;               /* era as compared */
	byte nonce;             /* the record it writes */
	bit base, ceil
}

Record window;
byte holder;                    /* 0: absent */
byte era = 1;                   /* the whole value of the era key */
bit floor;
Request req[MAXREQ];
byte sent;                      /* attempts made so far; the next slot of req */

/* ---- what only the checker knows ---------------------------------------- */

bit issued;                     /* X has been issued */
bit granted;                    /* some ceiling ever written lies above X */
byte eras = 1;                  /* eras ever made */
byte bumps, restores;
bit exposed;                    /* restored, the era not yet bumped (LATE_BUMP) */
bit late;                       /* every clock within max_skew of true time has passed X (WAITED) */

#if RESERVES > 0
bit reserved;                   /* window/s is the record of a reservation; restores are not combined with it */
byte reserves;
bit outside;                    /* the generator outside has issued X */
#ifdef MUT_RESERVED_IGNORED
#define FREE true
#else
#define FREE !reserved
#endif
#else
#define FREE true
#endif

/* ---- compares ------------------------------------------------------------ */

#if defined(REVISION_ONLY)
#define UNCHANGED(r, n) (window.rev == r)
#elif defined(VALUE_ONLY)
#define UNCHANGED(r, n) (window.nonce == n)
#else
#define UNCHANGED(r, n) (window.rev == r && window.nonce == n)
#endif

#ifdef NO_ERA_COMPARE
#define SAME_ERA(q) true
#else
#define SAME_ERA(q) (q.era == era)
#endif

#ifdef STEAL                    /* take a sid from a live holder */
#define ACQUIRE_HOLDER(q) true
#else
#define ACQUIRE_HOLDER(q) (holder == q.hold)
#endif
#ifdef NO_HOLDER_COMPARE
#define EXTEND_HOLDER(q) true
#else
#define EXTEND_HOLDER(q) (holder == q.hold)
#endif

/* RECORD_x(q): the compare of window/s in transaction x. It is the safety. */
#define RECORD(q) UNCHANGED(q.rev, q.seen)
#ifdef MUT_ACQUIRE_NO_RECORD
#define RECORD_ACQUIRE(q) true
#else
#define RECORD_ACQUIRE(q) RECORD(q)
#endif
#ifdef MUT_RECLAIM_NO_RECORD
#define RECORD_RECLAIM(q) true
#else
#define RECORD_RECLAIM(q) RECORD(q)
#endif
#ifdef MUT_EXTEND_NO_RECORD
#define RECORD_EXTEND(q) true
#else
#define RECORD_EXTEND(q) RECORD(q)
#endif
#ifdef MUT_REHOLD_NO_RECORD
#define RECORD_REHOLD(q) true
#else
#define RECORD_REHOLD(q) RECORD(q)
#endif
#ifdef MUT_RELEASE_NO_RECORD
#define RECORD_RELEASE(q) true
#else
#define RECORD_RELEASE(q) RECORD(q)
#endif

/* RELEASE compares neither holder nor era: the record alone proves that no other
   came after, and a ceiling given back never lies below the next ACQUIRE's floor. */
#define HOLDS(q) ( \
	(q.kind == ACQUIRE && SAME_ERA(q) && ACQUIRE_HOLDER(q) && RECORD_ACQUIRE(q)) || \
	(q.kind == RECLAIM && SAME_ERA(q) && ACQUIRE_HOLDER(q) && RECORD_RECLAIM(q)) || \
	(q.kind == EXTEND  && SAME_ERA(q) && EXTEND_HOLDER(q)  && RECORD_EXTEND(q)) || \
	(q.kind == REHOLD  && SAME_ERA(q) && EXTEND_HOLDER(q)  && RECORD_REHOLD(q)) || \
	(q.kind == RELEASE && RECORD_RELEASE(q)))

inline clear(q)
{
	q.kind = 0; q.state = 0; q.awaited = 0; q.who = 0; q.hold = 0;
	q.rev = 0; q.seen = 0; q.era = 0; q.nonce = 0; q.base = 0; q.ceil = 0
}

/* apply carries out one transaction whole, as etcd does. */
inline apply(q)
{
	if
	:: HOLDS(q) ->
#if PROBE > 0
		if
		:: !q.awaited -> reached(3)
		:: q.awaited && q.kind == RECLAIM -> reached(4)
		:: q.awaited && q.kind == REHOLD -> reached(5)
		:: q.awaited && q.kind == RELEASE && window.ceil && !q.ceil -> reached(6)
		:: else
		fi;
#endif
		TRACE("store    applies attempt %d, %e\n", q.nonce, q.kind)
		window.rev++;
		window.nonce = q.nonce;
		window.base = q.base;
		window.ceil = q.ceil;
		holder = (q.kind == RELEASE -> 0 : q.who);
#if RESERVES > 0
		reserved = 0;
#endif
		granted = granted || q.ceil;
		q.state = APPLIED
	:: else ->
		TRACE("store    refuses attempt %d, %e\n", q.nonce, q.kind)
		q.state = REFUSED
	fi;
	if
	:: !q.awaited -> clear(q)               /* the reply will not be read */
	:: else
	fi
}

#ifdef PURGE
/* Nonces and eras are unique, so a record or an era that was replaced comes back
   only out of the backup. A request that compares with one that cannot come back
   can only be refused; it may as well be refused at once. That saves most of the
   states, hides no duplicate, and run.sh repeats the smaller bounds without it. */
#if RESTORES > 0
#define RESTORABLE (backup.taken && restores < RESTORES)
#define RECORD_ALIVE(q) (RECORD(q) || (RESTORABLE && q.seen == backup.nonce))
#define ERA_ALIVE(q) (q.kind == RELEASE || q.era == era || (RESTORABLE && q.era == backup.era))
#else
#define RECORD_ALIVE(q) RECORD(q)
#define ERA_ALIVE(q) (q.kind == RELEASE || q.era == era)
#endif
inline purge()
{
	for (p : 0 .. MAXREQ - 1) {
		if
		:: req[p].state == SENT && !(RECORD_ALIVE(req[p]) && ERA_ALIVE(req[p])) ->
			if
			:: req[p].awaited -> req[p].state = REFUSED
			:: else -> clear(req[p])
			fi
		:: else
		fi
	}
	p = 0
}
#else
#define purge() skip
#endif

#if RESERVES > 0
/* operate writes a record of an operator, whose transaction compares record and holder. */
inline operate(taken, above)
{
	reserved = taken;
	window.rev++;
	window.nonce = 100 + 2 * reserves + taken;          /* no attempt has it */
	window.ceil = above;
	window.base = window.ceil;
	TRACE("admin    writes record %d, reserved: %d\n", window.nonce, reserved)
	purge()
}
#endif

#define DELIVER(k) :: d_step { req[k].state == SENT -> apply(req[k]); purge() }

/* bump makes a new era. Its floor never falls; f asks for it to lie above X. */
inline bump(f)
{
	eras++;
#ifdef MUT_ERA_REUSED
	era = era + 1;          /* counts on from the restored era: may name two eras alike */
#else
	era = eras;
#endif
	floor = floor || f;
	TRACE("admin    bumps the era to %d, floor above X: %d\n", era, floor)
	skip
}

#if RESTORES > 0
typedef Backup {
	bit taken;
	byte rev, nonce;
	bit base, ceil;
	byte holder, era;
	bit floor
}
Backup backup;

inline take_backup()
{
	TRACE("admin    takes a backup of record %d, era %d\n", window.nonce, era)
	backup.taken = 1;
	backup.rev = window.rev; backup.nonce = window.nonce;
	backup.base = window.base; backup.ceil = window.ceil;
	backup.holder = holder; backup.era = era; backup.floor = floor
}

/* restore puts all keys back. Revisions go back too and will be used again. */
inline restore()
{
	restores++;
	TRACE("admin    restores record %d, era %d\n", backup.nonce, backup.era)
	window.rev = backup.rev; window.nonce = backup.nonce;
	window.base = backup.base; window.ceil = backup.ceil;
	holder = backup.holder; era = backup.era; floor = backup.floor;
	if
	:: restores == RESTORES -> clear_backup()
	:: else
	fi
}

inline clear_backup()
{
	backup.rev = 0; backup.nonce = 0; backup.base = 0; backup.ceil = 0;
	backup.holder = 0; backup.era = 0; backup.floor = 0
}
#endif

active proctype Store()
{
#ifdef PURGE
	byte p;
#endif
end:
	do
	DELIVER(0)
#if MAXREQ > 1
	DELIVER(1)
#endif
#if MAXREQ > 2
	DELIVER(2)
#endif
#if MAXREQ > 3
	DELIVER(3)
#endif
#if MAXREQ > 4
	DELIVER(4)
#endif
#if MAXREQ > 5
	DELIVER(5)
#endif
#if MAXREQ > 6
	DELIVER(6)
#endif
#if MAXREQ > 7
	DELIVER(7)
#endif
	:: d_step { holder != 0 ->              /* the lease ran out, was revoked too early, or another node sent EXPIRE */
		TRACE("store    loses holder key of %d%c\n", holder, 32)
		holder = 0;
#ifdef MUT_WINDOW_ON_LEASE
		window.rev = 0; window.nonce = 0; window.base = 0; window.ceil = 0
#endif
	}
#if BUMPS > 0
	/* An ordinary bump may leave the floor anywhere: no record was lost. */
	:: atomic { bumps < BUMPS -> bumps++; if :: bump(0) :: bump(1) fi; purge() }
#endif
#if RESERVES > 0
	:: d_step { !reserved && holder == 0 && reserves < RESERVES -> reserves++; operate(1, window.ceil) }
	/* The generator outside issues at or above the ceiling that it was told. */
#ifdef MUT_OUTSIDE_EARLY
	:: d_step { reserved && !outside -> assert(!issued); issued = 1; outside = 1 }
#else
	:: d_step { reserved && !outside && !window.ceil -> assert(!issued); issued = 1; outside = 1; reached(10) }
#endif
	/* It has stopped when its sid is given back, above all of its IDs. */
#ifdef MUT_UNRESERVE_LOW
	:: d_step { reserved -> operate(0, window.ceil) }
#else
	:: d_step { reserved -> operate(0, window.ceil || outside); reached(11) }
#endif
#endif
#if RESTORES > 0
	:: d_step { !backup.taken && restores == 0 -> take_backup() }
#if defined(MUT_RESTORE_NO_BUMP)
	:: d_step { backup.taken && restores < RESTORES -> restore() }
#elif defined(WAITED) || defined(MUT_WAITED_BAD_CLOCK)
	/* The store stays down until true time has passed every ceiling granted. */
	:: d_step { !late -> late = 1 }
	:: d_step { backup.taken && restores < RESTORES && (late || !granted) -> restore() }
#elif defined(MUT_FLOOR_LOW)
	:: d_step { backup.taken && restores < RESTORES -> restore(); bump(0) }
#elif defined(MUT_LATE_BUMP)
	:: d_step { backup.taken && restores < RESTORES -> restore(); exposed = 1 }
	:: d_step { exposed -> bump(granted); exposed = 0 }
#else
	:: d_step { backup.taken && restores < RESTORES -> restore(); bump(granted); purge() }
#endif
#endif
	od
}

/* ---- a node -------------------------------------------------------------- */

/* send makes an attempt against the record in rev and nonce; mine remembers it. */
inline send(k, h, b, c)
{
	TRACE("node %d%c  ", i, 32) TRACE("sends attempt %d, %e", NONCE(sent), k)
	TRACE(" on record %d, rev %d,", nonce, rev) TRACE(" above X: base %d, ceil %d\n", b, c)
	req[sent].kind = k;
	req[sent].state = SENT;
	req[sent].awaited = 1;
	req[sent].who = ID(i);
	req[sent].hold = h;
	req[sent].rev = rev;
	req[sent].seen = nonce;
	req[sent].era = myera;
	req[sent].nonce = NONCE(sent);
	req[sent].base = b;
	req[sent].ceil = c;
	mine = mine | (1 << (NONCE(sent) - 1));
	cur = sent;
	sent++
}

/* give_up stops waiting for cur. What is on its way may still be applied. */
inline give_up()
{
	if
	:: req[cur].state == SENT -> req[cur].awaited = 0
	:: req[cur].state != SENT -> clear(req[cur])    /* no else: it would leak into the caller's choice */
	fi;
	cur = 0
}

inline forget()
{
	TRACE("node %d   starts without memory (of record %d)\n", i, nonce)
	rev = 0; nonce = 0; myera = 0; mine = 0; cur = 0;
	low = 0; base = 0; ceil = 0;
#ifdef MUT_RELEASE_LOW
	used = 0;
#endif
	skip
}

#define IS_MINE(n) (n != 0 && (mine & (1 << (n - 1))))

/* The generator: X is in what we may still use. After X only what is above X is. */
#if defined(WAITED)
#define CLOCK_LETS !late        /* it never issues behind its clock */
#elif defined(MUT_LATE_BUMP)
#define CLOCK_LETS !exposed     /* assume that every node refuses between restore and bump */
#else
#define CLOCK_LETS true
#endif
#define CAN_ISSUE (!base && ceil && CLOCK_LETS)
inline issue()
{
	TRACE("node %d   issues X from record %d\n", i, nonce)
	assert(!issued);        /* I1 */
#if PROBE > 0
	if
	:: restores > 0 -> reached(7)
	:: restores == 0 && bumps > 0 -> reached(8)
	:: else
	fi;
#endif
	issued = 1;
#ifdef MUT_RELEASE_LOW
	used = 1;
#endif
	base = 1
}

/* confirmed takes over the values of an attempt whose success was reported. */
inline confirmed()
{
	rev = req[cur].rev + 1;
	nonce = req[cur].nonce;
	ceil = req[cur].ceil;
	mine = 0;
	TRACE("node %d   learns that attempt %d was applied\n", i, nonce)
	clear(req[cur]);
	cur = 0
}

/* adopt takes over the record just read, which one of our attempts wrote. */
inline adopt()
{
#ifdef MUT_ADOPT_ASKED
	ceil = asked;           /* of the last attempt, whichever was applied */
#else
	ceil = window.ceil;
#endif
	rev = window.rev;
	nonce = window.nonce;
	TRACE("node %d   reads back and adopts record %d\n", i, nonce)
	mine = 0
}

proctype Node(byte i)
{
	byte rev, nonce;        /* window/s as last known to be */
	byte myera;
	byte mine;              /* nonces of our attempts against that record */
	byte cur;               /* the attempt we wait for */
	bit low;                /* max(ceiling, floor) as read: minimum base of an ACQUIRE */
	bit base, ceil;         /* the tenure: first millisecond not used yet, latest confirmed ceiling */
#ifdef MUT_RELEASE_LOW
	bit used;               /* this tenure has issued X */
#endif
#if defined(MUT_ADOPT_ASKED) || defined(MUT_ASSUME_APPLIED)
	bit asked;              /* the ceiling of the last attempt */
#endif

start:	/* no memory: a first start, a restart, or a tenure dropped */
	atomic { forget() };
	atomic { sent < MAXREQ && FREE ->
		rev = window.rev; nonce = window.nonce; myera = era;
#ifdef MUT_NO_FLOOR
		low = window.ceil
#else
		low = window.ceil || floor
#endif
	}
acquire:
	/* now, and now + W, are arbitrary; base >= low, ceil >= base. */
	atomic { sent < MAXREQ ->
#ifdef MUT_BELOW_CEILING
		if :: base = 0 :: base = 1 fi;
#else
		if :: base = low :: base = 1 fi;
#endif
		if :: ceil = base :: ceil = 1 fi;
		if
		:: send(ACQUIRE, 0, base, ceil)
#ifdef RECLAIMS
		/* a record of our own node's name, which is every record here */
		:: holder != 0 -> send(RECLAIM, holder, base, ceil)
#endif
		fi;
#if defined(MUT_ADOPT_ASKED) || defined(MUT_ASSUME_APPLIED)
		asked = ceil;
#endif
		ceil = 0; base = 0      /* I3: not ours until confirmed */
	};
	if
	:: atomic { req[cur].state == APPLIED -> base = req[cur].base; confirmed() }
	:: atomic { give_up();                                  /* unknown or refused: read back */
		if
		:: IS_MINE(window.nonce) -> reached(1); base = window.base; adopt()
		:: !IS_MINE(window.nonce) && UNCHANGED(rev, nonce) ->
			goto acquire                            /* the same compares again */
#ifdef MUT_RETRY_REPINNED
		:: else -> rev = window.rev; nonce = window.nonce; goto acquire         /* low stays as it was */
#else
		:: else -> goto start
#endif
		fi }
	:: atomic { give_up(); goto start }                     /* crash */
	fi;
	atomic { low = 0 };

hold:
	do
	:: atomic { CAN_ISSUE -> issue() }
	:: atomic { sent < MAXREQ ->
		if
		:: ceil -> send(EXTEND, ID(i), ceil, 1)
		:: !ceil -> send(EXTEND, ID(i), ceil, 0)
		:: !ceil -> send(EXTEND, ID(i), ceil, 1)
#ifdef REHOLDS
		:: send(REHOLD, 0, ceil, 1)
		:: !ceil -> send(REHOLD, 0, ceil, 0)
#endif
		fi;
#if defined(MUT_ADOPT_ASKED) || defined(MUT_ASSUME_APPLIED)
		asked = req[cur].ceil;
#endif
#ifdef MUT_OPTIMISTIC
		ceil = req[cur].ceil
#endif
		};
		do
		:: atomic { CAN_ISSUE -> issue() }
		:: atomic { req[cur].state == APPLIED -> confirmed(); break }
		:: atomic { give_up();                          /* unknown or refused: read back */
#ifdef MUT_ASSUME_APPLIED
			ceil = asked;
#endif
			if
			:: IS_MINE(window.nonce) -> reached(2); adopt(); break
			:: !IS_MINE(window.nonce) && UNCHANGED(rev, nonce) ->
				break                           /* keep the old window */
			:: else -> goto lost
			fi }
		:: atomic { give_up(); goto start }             /* crash */
		od
	:: atomic { sent < MAXREQ ->                            /* RELEASE; seal before sending */
#ifdef MUT_RELEASE_LOW
		/* the last ID's own millisecond is given back with the rest */
		if :: used -> send(RELEASE, 0, base, 0) :: send(RELEASE, 0, base, ceil) fi;
		used = 0;
#else
		/* any ceiling from max(base, last + 1) up to the one we hold */
		if :: send(RELEASE, 0, base, base) :: base != ceil -> send(RELEASE, 0, base, ceil) fi;
#endif
#ifndef MUT_NO_SEAL
		base = 0; ceil = 0
#endif
		};
		do
#ifdef MUT_NO_SEAL
		:: atomic { CAN_ISSUE -> issue() }
#endif
		:: atomic { give_up(); goto start }             /* applied, refused or unknown: the same */
		od
	:: goto start                                           /* crash, or another era seen */
	od;

lost:	/* window/s has another record: what was confirmed can still be used, to its ceiling */
	atomic { rev = 0; nonce = 0; myera = 0; mine = 0 };
	do
	:: atomic { CAN_ISSUE -> reached(9); issue() }
	:: goto start
	od
}

init
{
	atomic {
		byte n = 0;
		do
		:: n < NODES -> run Node(n); n++
		:: else -> break
		od;
		n = 0
	}
}
