/*
 * Workers: holders of a sid that do not write to the store themselves. Nodes do it for
 * them and keep nothing: each call is a read, at most one guarded transaction, an answer.
 * Checked for one claim: no millisecond of a sid is permitted twice, to two workers, to two
 * runs of one, or to a worker and a node.
 *
 * Time is abstracted as in lease.pml: one millisecond X, bases, ceilings and clocks are bits.
 * The record has the first base of its term beside the ceiling, so that an answer tells
 * the whole interval, whoever asks.
 *
 * The adversary: any node serves any call, at any time after it was sent, or never; several
 * serve one worker at once; a node stops between any two steps; its transaction is applied
 * at any time after, or never; answers are lost, late and out of order; the lease in the
 * store ends at any time; workers end in any state and start again without memory. A worker
 * asks for permission in one thread and closes in another.
 *
 * Another holder (a node, whose own lost answers are the matter of lease.pml) takes the sid in
 * one step, and uses X at once if it may: for the others that is the worst.
 *
 * -D selects a variant: see run.sh.
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef CALLS
#define CALLS 4                 /* calls in one history, 1 to 6 */
#endif
#ifndef OTHERS
#define OTHERS 0                /* times that another holder takes the sid */
#endif
#ifndef BUMPS
#define BUMPS 0
#endif
#ifndef RESTORES
#define RESTORES 0
#endif
#ifndef PROBE
#define PROBE 0
#endif
#define reached(n) assert(PROBE != n)

#ifdef TRACE_STEPS
#define TRACE(f, a, b) printf(f, a, b);
#else
#define TRACE(f, a, b)
#endif

#define OTHER 100               /* instance of the first other holder */

mtype = { TAKE, EXTEND, GIVE };                 /* what a worker asks for */
mtype = { ACQUIRE, RAISE, REHOLD, RELEASE };    /* transactions */
mtype = { CALLED, SENT, ANSWERED };

/* ---- the store ---------------------------------------------------------- */

typedef Record {
	byte nonce;             /* its value; 0: the key is absent */
	byte inst, term, era;
	bit since, ceil, live
}
Record window;
byte holder;                    /* the lease of holder/s; 0: absent */
byte era = 1;
bit floor;

typedef Call {
	mtype kind;
	mtype state;            /* 0: over */
	byte inst, term;        /* TAKE: the secret; else the handle. SENT: the term it writes */
	bit used;               /* GIVE: the bound that the worker states lies above X */
	mtype op;               /* SENT: the transaction, its compares and what it writes */
	byte hold, seen, era;
	bit since, ceil         /* ANSWERED: the interval */
}
Call call[CALLS];
byte calls;

/* ---- what only the checker knows ---------------------------------------- */

byte starts;                    /* runs of workers so far */
byte current[WORKERS];          /* instance that listens for answers */
byte owner;                     /* who was permitted X; 0: nobody */
bit twice;
bit granted;                    /* some ceiling ever written lies above X */
byte eras = 1;
byte others, bumps, restores;

#if WORKERS > 1
#define LISTENS(n) (current[0] == n || current[1] == n)
#else
#define LISTENS(n) (current[0] == n)
#endif

inline permit(who)
{
	TRACE("X is permitted to run %d%c\n", who, 32)
	twice = owner != 0 && owner != who;
	assert(!twice);
	owner = who
}

inline clear(q)
{
	q.kind = 0; q.state = 0; q.inst = 0; q.term = 0; q.used = 0;
	q.op = 0; q.hold = 0; q.seen = 0; q.era = 0; q.since = 0; q.ceil = 0
}

/* ---- transactions, as etcd carries them out ------------------------------ */

#define UNCHANGED(q) (window.nonce == q.seen)
#ifdef MUT_EXTEND_NO_RECORD
#define RECORD_EXTEND(q) true
#else
#define RECORD_EXTEND(q) UNCHANGED(q)
#endif
#ifdef MUT_RELEASE_NO_RECORD
#define RECORD_RELEASE(q) true
#else
#define RECORD_RELEASE(q) UNCHANGED(q)
#endif
#ifdef NO_HOLDER_COMPARE
#define HOLDER(q) true
#else
#define HOLDER(q) (holder == q.hold)
#endif
#ifdef MUT_NO_ERA_COMPARE
#define SAME_ERA(q) true
#else
#define SAME_ERA(q) (era == q.era)
#endif

#define HOLDS(q) ( \
	(q.op == ACQUIRE && SAME_ERA(q) && HOLDER(q) && UNCHANGED(q)) || \
	((q.op == RAISE || q.op == REHOLD) && SAME_ERA(q) && HOLDER(q) && RECORD_EXTEND(q)) || \
	(q.op == RELEASE && RECORD_RELEASE(q)))

/* apply carries out the transaction of call k, and has it answered. */
inline apply(q, k)
{
	if
	:: HOLDS(q) ->
#if PROBE > 0
		if
		:: q.op == REHOLD -> reached(2)
		:: q.op == RELEASE && window.ceil && !q.ceil -> reached(3)
		:: q.op == RAISE && !LISTENS(q.inst) -> reached(7)
		:: else
		fi;
#endif
		TRACE("store   applies call %d, %e\n", k + 1, q.op)
		window.nonce = k + 1;
		window.inst = q.inst; window.term = q.term;
		window.since = q.since; window.ceil = q.ceil;
		window.live = q.op != RELEASE;
		if
		:: q.op == RELEASE -> holder = 0
		:: q.op == ACQUIRE || q.op == REHOLD -> holder = k + 1; window.era = q.era
		:: q.op == RAISE -> window.era = q.era
		fi;
		granted = granted || q.ceil;
		if
		:: q.op == RELEASE -> clear(q)
		:: else -> q.state = ANSWERED; q.op = 0; q.hold = 0; q.seen = 0; q.era = 0
		fi
	:: else ->
#if PROBE > 0
		if
		:: q.op == RAISE && q.inst == window.inst && window.live -> reached(8)
		:: else
		fi;
#endif
		TRACE("store   refuses call %d, %e\n", k + 1, q.op)
		clear(q)        /* the worker asks again, or some node for it: a call of its own */
	fi
}

/* ---- a node serves a call ------------------------------------------------ */

/* The record is the caller's by instance, term and era: whoever wrote it. */
#if defined(MUT_ADOPT_NAME)
#define OWNS(q) true
#elif defined(ANY_TERM)
#define OWNS(q) (window.inst == q.inst)
#else
#define OWNS(q) (window.inst == q.inst && (q.kind == TAKE || window.term == q.term))
#endif
#ifdef MUT_ANY_ERA
#define OURS(q) (window.nonce != 0 && window.live && OWNS(q))
#else
#define OURS(q) (window.nonce != 0 && window.live && OWNS(q) && window.era == era)
#endif

#ifdef MUT_EARLY
#define LOW 0                   /* its own clock alone */
#else
#define LOW (window.ceil || floor)
#endif
#ifdef STEAL
#define FREE true
#else
#define FREE (holder == 0)
#endif

inline send(q, k, o)
{
	TRACE("a node  sends call %d, %e", k + 1, o) TRACE(", on record %d, era %d\n", window.nonce, era)
	q.op = o; q.hold = holder; q.seen = window.nonce; q.era = era;
	q.state = SENT
}

inline answer(q, k)
{
	TRACE("a node  answers call %d from record %d\n", k + 1, window.nonce)
	q.since = window.since; q.ceil = window.ceil;
	if :: q.kind == TAKE -> q.term = window.term :: else fi;
	q.state = ANSWERED
}

/* serve reads the store and decides from that alone. To read and to send is one step: a
   transaction that waits is as old as a read that does. */
inline serve(q, k)
{
	if
	:: q.kind == TAKE && OURS(q) -> reached(1); answer(q, k)
	:: q.kind == TAKE && !OURS(q) && FREE ->
		if :: q.since = LOW :: q.since = 1 fi;
		if :: q.ceil = q.since :: q.ceil = 1 fi;
		q.term = window.term + 1;
		send(q, k, ACQUIRE)
	:: q.kind == EXTEND && OURS(q) -> answer(q, k)          /* an earlier call raised it, or it is high enough */
	:: q.kind == EXTEND && OURS(q) ->
		q.since = window.since;
		if :: q.ceil = window.ceil :: q.ceil = 1 fi;
		if
		:: holder != 0 -> send(q, k, RAISE)
		:: holder == 0 -> send(q, k, REHOLD)
		fi
	:: q.kind == GIVE && OURS(q) ->
		q.since = window.since;
#ifdef MUT_RELEASE_LOW
		q.ceil = window.since;
#else
		q.ceil = window.ceil && (window.since || q.used);
#endif
		send(q, k, RELEASE)
	:: (q.kind == EXTEND || q.kind == GIVE) && !OURS(q) -> clear(q)         /* UNKNOWN_WORKER */
	:: q.kind == TAKE && !OURS(q) && !FREE -> clear(q)                      /* NO_WORKER */
	fi
}

/* Drop what can do nothing any more: it saves most of the states. */
#ifdef PURGE
#if RESTORES > 0
#define RESTORABLE (backup.taken && restores < RESTORES)
#define SEEN_ALIVE(q) (UNCHANGED(q) || (RESTORABLE && q.seen == backup.w.nonce))
#define ERA_ALIVE(q) (q.op == RELEASE || era == q.era || (RESTORABLE && q.era == backup.era))
#else
#define SEEN_ALIVE(q) UNCHANGED(q)
#define ERA_ALIVE(q) (q.op == RELEASE || era == q.era)
#endif
inline purge()
{
	for (p : 0 .. CALLS - 1) {
		if
		:: call[p].state == SENT && !(SEEN_ALIVE(call[p]) && ERA_ALIVE(call[p])) -> clear(call[p])
		:: call[p].state == ANSWERED && !LISTENS(call[p].inst) -> clear(call[p])
		:: else
		fi
	}
	p = 0
}
#else
#define purge() skip
#endif

/* another is a holder that is no worker of this model. */
inline another()
{
	others++;
	TRACE("another holder takes the sid, over record %d%c\n", window.nonce, 32)
	if :: window.since = window.ceil || floor :: window.since = 1 fi;
	if :: window.ceil = window.since :: window.ceil = 1 fi;
	window.nonce = OTHER + others; window.inst = OTHER + others; window.term++;
	window.era = era; window.live = 1;
	holder = OTHER + others;
	granted = granted || window.ceil;
	if
	:: !window.since && window.ceil -> permit(OTHER + others)
	:: else
	fi
}

inline bump(f)
{
	eras++;
	era = eras;
	floor = floor || f;
	TRACE("admin   bumps the era to %d, floor above X: %d\n", era, floor)
	skip
}

#if RESTORES > 0
typedef Backup {
	bit taken;
	Record w;
	byte holder, era;
	bit floor
}
Backup backup;

inline copy(a, b)
{
	a.nonce = b.nonce; a.inst = b.inst; a.term = b.term; a.era = b.era;
	a.since = b.since; a.ceil = b.ceil; a.live = b.live
}

inline take_backup()
{
	TRACE("admin   takes a backup of record %d, era %d\n", window.nonce, era)
	backup.taken = 1;
	copy(backup.w, window);
	backup.holder = holder; backup.era = era; backup.floor = floor
}

inline restore()
{
	restores++;
	TRACE("admin   restores record %d, era %d\n", backup.w.nonce, backup.era)
	copy(window, backup.w);
	holder = backup.holder; era = backup.era; floor = backup.floor;
	backup.w.nonce = 0; backup.w.inst = 0; backup.w.term = 0; backup.w.era = 0;
	backup.w.since = 0; backup.w.ceil = 0; backup.w.live = 0;
	backup.holder = 0; backup.era = 0; backup.floor = 0
}
#endif

#define CARRY(k) \
	:: atomic { call[k].state == CALLED -> serve(call[k], k); purge() } \
	:: d_step { call[k].state == SENT -> apply(call[k], k); purge() }

active proctype Store()
{
#ifdef PURGE
	byte p;
#endif
end:
	do
	CARRY(0)
#if CALLS > 1
	CARRY(1)
#endif
#if CALLS > 2
	CARRY(2)
#endif
#if CALLS > 3
	CARRY(3)
#endif
#if CALLS > 4
	CARRY(4)
#endif
#if CALLS > 5
	CARRY(5)
#endif
	:: d_step { holder != 0 ->
		TRACE("store   loses lease %d%c\n", holder, 32)
		holder = 0
	}
#if OTHERS > 0
	:: atomic { others < OTHERS && FREE -> another(); purge() }
#endif
#if BUMPS > 0
	:: atomic { bumps < BUMPS -> bumps++; if :: bump(0) :: bump(1) fi; purge() }
#endif
#if RESTORES > 0
	:: d_step { !backup.taken && restores == 0 -> take_backup() }
	:: d_step { backup.taken && restores < RESTORES -> restore(); bump(granted); purge() }
#endif
	od
}

/* ---- a worker ------------------------------------------------------------ */

inline ask(what, h, u)
{
	TRACE("run %d   asks, call %d: ", run_, calls + 1) TRACE("%e%c\n", what, 32)
	call[calls].kind = what;
	call[calls].state = CALLED;
	call[calls].inst = inst;
	call[calls].term = h;
	call[calls].used = u;
	calls++
}

/* An answer that begins elsewhere is of another interval, though instance and term are the
   same: after a restore they may come twice. */
#ifdef MUT_MERGE
#define SAME(q) (q.term == term)
#else
#define SAME(q) (q.term == term && q.since == since)
#endif
#define HEAR(k) \
	:: d_step { call[k].state == ANSWERED && call[k].inst == inst -> \
		TRACE("run %d   gets the answer to call %d\n", run_, k + 1) \
		if \
		:: !have -> have = 1; term = call[k].term; since = call[k].since; ceil = call[k].ceil \
		:: have && SAME(call[k]) -> ceil = ceil || call[k].ceil \
		:: else \
		fi; \
		clear(call[k]) }

#define INSIDE (have && !since && ceil)

proctype Worker(byte i)
{
	byte run_, inst;        /* inst: of its secret, new for each run */
	byte term;
	bit have, since, ceil;  /* the interval, of that term */
	bit asked, closed;
	bit used;               /* the latest millisecond asked about is X, or above */
	bit asking;             /* between the two steps of Permit */
#ifdef MUT_CLOSE_READS_FIRST
	bit read, said;
#endif

start:
	atomic {
		starts++;
		run_ = starts;
#ifdef MUT_SECRET_KEPT
		inst = i + 1;
#else
		inst = starts;
#endif
		current[i] = inst;
		term = 0; have = 0; since = 0; ceil = 0; asked = 0; closed = 0; used = 0; asking = 0
#ifdef MUT_CLOSE_READS_FIRST
		; read = 0; said = 0
#endif
	};
	do
	HEAR(0)
#if CALLS > 1
	HEAR(1)
#endif
#if CALLS > 2
	HEAR(2)
#endif
#if CALLS > 3
	HEAR(3)
#endif
#if CALLS > 4
	HEAR(4)
#endif
#if CALLS > 5
	HEAR(5)
#endif
	:: d_step { calls < CALLS && !have -> ask(TAKE, 0, 0); asked = 1 }         /* again while one is on its way, too */
	:: d_step { calls < CALLS && have && !closed -> ask(EXTEND, term, 0) }
	/* Permit raises the latest, then looks at the interval. */
#ifdef MUT_PERMIT_LOOKS_FIRST
	:: d_step { INSIDE && !closed && !asking -> asking = 1 }
	:: atomic { asking -> asking = 0; used = 1; permit(run_) }
#else
	:: d_step { INSIDE && !closed && !asking -> asking = 1; used = 1 }
#ifdef MUT_PERMIT_SKIPS
	:: d_step { have && !INSIDE && !closed && !asking -> asking = 1 }       /* not raised, and looked at again */
#endif
	:: atomic { asking ->
		asking = 0;
		if
		:: INSIDE && !closed ->
#if PROBE > 0
			if
			:: window.inst != inst && others > 0 -> reached(4)
			:: restores > 0 -> reached(5)
			:: else
			fi;
#endif
			permit(run_)
		:: else -> reached(6)
		fi }
#endif
	/* Close ends the interval, then reads the latest. */
#ifdef MUT_CLOSE_READS_FIRST
	:: d_step { have && !closed && !read -> read = 1; said = used }
	:: d_step { read && !closed -> closed = 1 }
	:: d_step { calls < CALLS && closed -> ask(GIVE, term, said) }
#else
	:: d_step { have && !closed -> closed = 1 }
	:: d_step { calls < CALLS && closed -> ask(GIVE, term, used) }
	:: d_step { calls < CALLS && closed && !used -> ask(GIVE, term, 1) }
#endif
	:: calls < CALLS && asked -> goto start                 /* crash */
	od
}

init
{
	atomic {
		run Worker(0)
#if WORKERS > 1
		; run Worker(1)
#endif
	}
}
