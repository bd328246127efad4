/*
 * The watermark (docs/DESIGN.md#the-watermark), checked for claim I9: once a mark above X
 * was answered, no ID of millisecond X is issued; an answer without a condition rests on no
 * clock; and whoever has read the present era answers no lower mark than was answered before.
 * Of a worker that tells no floors the first two hold where the answer did not name its sid.
 *
 * As in lease.pml, time is abstracted to one question: X is any one millisecond, and a base,
 * a ceiling, a floor and the mark are one bit each: is it above X? A clock is a bit chosen
 * anew at each use, so that of a process which lives may be wrong in any way. There is one
 * sid: of several, the mark is the lowest, so each allows no more than it does alone.
 *
 * What rests on clocks is the end of a holder that vanished. That the raiser has seen a
 * ceiling pass on a confirmed clock, and the grace after it, is modeled by what follows if
 * clocks go on: no process issues any more from a record up to that one (past). For a sid
 * with a holder key nothing follows from clocks.
 *
 * The adversary: requests are applied late or never, replies are lost, holder keys vanish,
 * processes stop in any state, start again without memory, or pause. That two processes do
 * not issue one millisecond is the matter of lease.pml, and not asked here.
 *
 * -D selects a variant: see run.sh.
 */

#ifndef NODES
#define NODES 2
#endif
#ifndef MAXREQ
#define MAXREQ 3                /* transactions of nodes sent in one history, 1 to 6 */
#endif
#ifndef SILENT
#define SILENT 0                /* so many of the nodes are workers that tell no floors */
#endif
#ifndef RESTORES
#define RESTORES 0              /* times the store goes back to its backup, and an era begins */
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

mtype = { ACQUIRE, RECLAIM, EXTEND, REHOLD, RELEASE };

typedef Request {
	mtype kind;             /* 0: slot is free, or the request was applied or refused */
	byte term, rev;         /* term: new owner of window; rev: window as compared */
	byte hold;              /* holder as compared */
	byte era;
	bit mark, named;        /* the mark as compared */
	bit ceil, floor, tells
}

/* ---- the store ---------------------------------------------------------- */

byte rev;                       /* revision and value of window: each is used once */
byte term;                      /* the attempt that acquired the sid; 0: nobody has yet */
bit unsealed, ceil, wfloor;       /* wfloor: whoever has the sid issues no X any more */
byte holder;                    /* the term whose holder key is there; 0: absent */
bit prior;                      /* predecessors that were not sealed may issue X */
byte priorRev;                  /* the last record of such a predecessor */
bit tells;                      /* whoever has the sid tells floors */
bit since;                      /* its first base */
bit silent;                     /* predecessors that told no floors may issue X */
byte silentRev;                 /* the last record of such a predecessor */
byte era = 1;
bit eraFloor;
bit mark;
byte markEra = 1;               /* the era that the mark was raised in: of another one it is not answered */
bit rests;                      /* the mark says that it rests on clocks */
byte restsRev;                  /* on those of records up to this one */
bit named;                      /* it says that the sid is not covered */
byte touched;                   /* revision of the mark's key */

Request req[MAXREQ];
byte sent;

/* ---- what only the checker knows ---------------------------------------- */

bit answered;                   /* a mark above X was in the store */
bit firm;                       /* and one that rests on no clock */
bit unnamed;                    /* a mark above X that did not name the sid was in the store */
bit unnamedFirm;                /* and one that rests on no clock */
byte renames;                   /* raises by which no more changed than whether the sid is named */
bit fell;                       /* a lower one was answered after it */
bit granted;                    /* some ceiling ever written lies above X */
byte revs, eras = 1, restores;
byte eraRev;                    /* records up to this one are of histories before the era */
byte past;                      /* every clock has passed the ceilings of records up to this one */

#define TAKES(k) (k == ACQUIRE || k == RECLAIM || k == REHOLD)

#ifdef MUT_NO_MARK_COMPARE
#define SAME_MARK(q) true
#else
#define SAME_MARK(q) (q.mark == mark && q.named == named)
#endif
#ifdef MUT_REHOLD_NO_COMPARE
#define REHOLD_MARK(q) true
#else
#define REHOLD_MARK(q) SAME_MARK(q)
#endif
#ifdef MUT_EXTEND_ANY_HOLDER
#define EXTEND_HOLDER(q) true
#else
#define EXTEND_HOLDER(q) (holder == q.hold)
#endif

#define HOLDS(q) (q.rev == rev && ( \
	((q.kind == ACQUIRE || q.kind == RECLAIM) && q.era == era && holder == q.hold && SAME_MARK(q)) || \
	(q.kind == REHOLD && q.era == era && holder == 0 && REHOLD_MARK(q)) || \
	(q.kind == EXTEND && q.era == era && EXTEND_HOLDER(q)) || \
	q.kind == RELEASE))

inline clear(q)
{
	q.kind = 0; q.term = 0; q.rev = 0; q.hold = 0; q.era = 0; q.mark = 0; q.named = 0; q.ceil = 0;
	q.floor = 0; q.tells = 0
}

inline apply(q)
{
	if
	:: HOLDS(q) ->
		TRACE("store    applies %e of term %d\n", q.kind, q.term)
		if
		:: q.kind == ACQUIRE || q.kind == RECLAIM ->
			/* The owner of a record that is replaced may issue on, unless it gave the sid back. */
#ifndef MUT_FORGET_PRIOR
			if
			:: unsealed && tells && !wfloor && !mark -> prior = 1; priorRev = rev; reached(1)
#ifndef MUT_FORGET_SILENT
			:: unsealed && !tells && !since -> silent = 1; silentRev = rev; reached(8)
#endif
			:: else
			fi;
#endif
			tells = q.tells; since = q.floor;
			term = q.term
		:: q.kind == RELEASE && prior ->
#ifdef MUT_RELEASE_FORGETS
			prior = 0;
#endif
			reached(2)
		:: else
		fi;
		if
		:: TAKES(q.kind) ->
			holder = term;
#ifdef MUT_NO_TOUCH
			skip
#else
#ifdef MUT_REHOLD_NO_TOUCH
			if :: q.kind != REHOLD -> touched++ :: else fi
#else
			touched++
#endif
#endif
		:: q.kind == RELEASE -> holder = 0
		:: else
		fi;
		revs++;
		rev = revs;
		unsealed = (q.kind != RELEASE);
		ceil = q.ceil;
		wfloor = q.floor && (tells || q.kind == RELEASE);
		granted = granted || q.ceil
	:: else
	fi;
	clear(q)
}

#define DELIVER(k) :: d_step { req[k].kind != 0 -> apply(req[k]) }

/* answer checks what nodes that read the store now answer. */
inline answer()
{
#ifdef MUT_ANSWERS_ANY_ERA
	fell = !mark && answered;
#else
	fell = !mark && answered && markEra == era;
#endif
	assert(!fell)
}

#if RESTORES > 0
typedef Backup {
	bit taken;
	byte rev, term, holder, priorRev, era, touched, markEra;
	byte silentRev, restsRev;
	bit unsealed, ceil, wfloor, prior, eraFloor, mark, rests, named, tells, since, silent
}
Backup backup;

inline take_backup()
{
	backup.taken = 1;
	backup.rev = rev; backup.term = term; backup.holder = holder; backup.priorRev = priorRev;
	backup.era = era; backup.touched = touched; backup.unsealed = unsealed; backup.ceil = ceil;
	backup.wfloor = wfloor; backup.prior = prior; backup.eraFloor = eraFloor; backup.mark = mark;
	backup.markEra = markEra; backup.rests = rests; backup.restsRev = restsRev; backup.named = named;
	backup.tells = tells; backup.since = since; backup.silent = silent; backup.silentRev = silentRev
}

/* restore puts all keys back, and begins an era above all that was ever granted. */
inline restore()
{
	TRACE("admin    restores record %d, mark above X: %d\n", backup.rev, backup.mark)
	restores++;
	rev = backup.rev; term = backup.term; holder = backup.holder; priorRev = backup.priorRev;
	touched = backup.touched; unsealed = backup.unsealed; ceil = backup.ceil;
	wfloor = backup.wfloor; prior = backup.prior; mark = backup.mark;
	markEra = backup.markEra; rests = backup.rests; restsRev = backup.restsRev; named = backup.named;
	tells = backup.tells; since = backup.since; silent = backup.silent; silentRev = backup.silentRev;
	eras++;
	era = eras;
#ifdef MUT_ERA_LOW
	eraFloor = backup.eraFloor;
#else
	eraFloor = backup.eraFloor || granted;
#endif
	eraRev = revs;
	backup.rev = 0; backup.term = 0; backup.holder = 0; backup.priorRev = 0; backup.era = 0;
	backup.touched = 0; backup.unsealed = 0; backup.ceil = 0; backup.wfloor = 0; backup.prior = 0;
	backup.eraFloor = 0; backup.mark = 0; backup.markEra = 0; backup.rests = 0; backup.restsRev = 0;
	backup.named = 0; backup.tells = 0; backup.since = 0; backup.silent = 0; backup.silentRev = 0;
	answer()
}
#endif

active proctype Store()
{
end:	do
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
	:: d_step { holder != 0 -> TRACE("store    loses holder key of term %d%c\n", holder, 32) holder = 0 }
#if RESTORES > 0
	:: d_step { !backup.taken -> take_backup() }
	:: d_step { backup.taken && restores < RESTORES -> restore() }
#endif
	od
}

/* ---- who raises the mark --------------------------------------------------- */

/* It reads everything at one revision, and decides whether the mark may be above X. Its own
   window, of another sid, lies above X then, and that was granted. */
active proctype Raiser()
{
	byte seen, seenEra, gone;
	bit free;               /* the mark may be above X */
	bit name;               /* the sid is not covered */
	bit passed;             /* the floor of the era was seen to pass, now or by an earlier raise */

#if SILENT > 0
#define AGAIN (renames < 2 && (!tells || silent || named))
#else
#define AGAIN false
#endif
end:	do
	:: atomic { !mark || markEra != era || AGAIN ->
		seen = touched; seenEra = era; gone = 0; free = 1; passed = 1;
		if :: mark && markEra == era -> renames++ :: else fi;
#ifndef MUT_ERA_EARLY
		if
		:: markEra != era && eraFloor -> if :: gone = eraRev :: passed = 0; free = 0 fi
		:: else
		fi;
#endif
		if
		:: unsealed && (!wfloor || !tells) && !(passed && rev <= eraRev) ->
			if
#ifdef MUT_LAPSE_HELD
			:: gone = (gone > rev -> gone : rev)
#else
			:: holder == 0 -> gone = (gone > rev -> gone : rev)     /* its ceiling and the grace have passed */
#endif
			:: tells -> free = 0
			:: !tells && rev > restsRev -> name = 1
			fi
		:: else
		fi;
		if
		:: silent && !(passed && silentRev <= eraRev) ->
			if :: gone = (gone > silentRev -> gone : silentRev) :: silentRev > restsRev -> name = 1 fi
		:: else
		fi;
		if
		:: prior && !(passed && priorRev <= eraRev) ->
			if :: gone = (gone > priorRev -> gone : priorRev) :: free = 0 fi
		:: else
		fi;
		/* Another cause, such as a record that cannot be read, leaves the mark where it is. */
		if :: skip :: markEra != era -> free = 0 fi;
		if
#ifdef MUT_ERA_LEFT_LOW
		:: passed && (free || markEra != era) ->
#else
		:: passed && (free || markEra != era && !eraFloor) ->
#endif
			TRACE("raiser   finds that the mark may be above X; touched %d, past %d\n", seen, gone)
#ifndef MUT_UNCONFIRMED
			past = (past > gone -> past : gone);
#endif
			if :: gone != 0 -> reached(3) :: else fi
		:: else -> seen = 0; seenEra = 0; gone = 0; free = 0; name = 0; passed = 0; goto end
		fi
	   }
#ifdef MUT_TWO_REVISIONS
	   atomic { seen = touched };
#endif
	   if
#ifdef MUT_RAISE_NO_ERA
	   :: atomic { seen == touched ->
#else
	   :: atomic { seen == touched && seenEra == era ->
#endif
		TRACE("raiser   raises the mark; above X: %d, of era %d\n", free, seenEra)
#ifdef MUT_ERA_UNCONDITIONAL
		rests = rests || gone > eraRev;
#else
		rests = rests || gone != 0;
#endif
		restsRev = (restsRev > gone -> restsRev : gone);
		touched++; markEra = seenEra; mark = mark || free; named = name;
		answered = answered || mark;
		firm = firm || (mark && !rests);
		unnamed = unnamed || (mark && !named);
		unnamedFirm = unnamedFirm || (mark && !named && !rests);
		answer();
#ifndef MUT_NO_WINDOW
		granted = granted || free;
#endif
		if :: gone != 0 -> reached(4) :: else fi;
		if :: restores > 0 -> reached(5) :: else fi;
		if :: free && rests && gone == 0 -> reached(7) :: else fi
	      }
	   :: skip
	   fi;
	   atomic { seen = 0; seenEra = 0; gone = 0; free = 0; name = 0; passed = 0 }
	od
}

/* ---- a node -------------------------------------------------------------- */

#define TELLS (i >= SILENT)

inline send(k, h, c, f)
{
	TRACE("node %d   sends %e", i, k) TRACE(": ceil %d, floor %d\n", c, f)
	req[sent].kind = k;
	req[sent].term = mine;
	req[sent].rev = known;
	req[sent].hold = h;
	req[sent].era = myera;
	req[sent].mark = mymark;
	req[sent].named = mynamed;
	req[sent].ceil = c;
	req[sent].floor = f;
	req[sent].tells = TELLS;
	sent++
}

/* A worker that tells no floors may use all of its interval: where the mark is above the first base
   it takes the key up again only if the mark names it. */
#ifdef MUT_SILENT_REHOLD
#define MAY_REHOLD true
#else
#define MAY_REHOLD (TELLS || !mymark || mynamed)
#endif

proctype Node(byte i)
{
	byte mine;              /* the term; 0: none */
	byte known;             /* window as last known to be, ours */
	byte myera;
	bit mymark, mynamed;
	bit word, top;          /* the word, or the base, is above X; the confirmed ceiling is */

start:	atomic { mine = 0; known = 0; myera = 0; mymark = 0; mynamed = 0; word = 0; top = 0 };
	atomic { sent < MAXREQ ->
		known = rev; myera = era; mymark = mark; mynamed = named; mine = sent + 1;
		word = ceil || eraFloor;
#ifndef MUT_BASE_BELOW
		word = word || mark;
#endif
		if :: word = 1 :: skip fi;
		if :: top = word :: top = 1 fi;
		if
		:: holder == 0 -> send(ACQUIRE, 0, top, word)
		:: holder != 0 -> send(RECLAIM, holder, top, word)
		fi;
		top = 0; word = 0
	}
	if
	:: atomic { term == mine -> known = rev; word = since; top = ceil }     /* it was applied */
	:: goto start                                           /* refused, unknown, or a crash */
	fi;

	do
	:: atomic { TELLS && !word && top && (known > past || firm) ->
		TRACE("node %d   issues X from record %d\n", i, known)
		assert(!answered);                              /* I9 */
		if :: holder != mine -> reached(6) :: else fi
	   }
	:: atomic { !TELLS && !word && top && (known > past || unnamedFirm) ->
		TRACE("worker %d issues X from record %d\n", i, known)
		assert(!unnamed);                               /* I9 */
		if :: answered -> reached(9) :: else fi
	   }
	:: word = 1                                             /* it issues later IDs */
	:: atomic { term == mine && unsealed ->                 /* it reads its record */
		known = rev; top = ceil; mymark = mark; mynamed = named;
#ifdef MUT_KEEPS_ERA
		myera = era             /* a hold is given up when another era is seen */
#endif
	   }
	:: atomic { sent < MAXREQ ->
		bit f;
		if :: f = word :: f = 1 fi;
		if
#ifndef MUT_FLOOR_FIRST
		:: word = word || f; send(EXTEND, mine, 1, f)
		:: !top -> word = word || f; send(EXTEND, mine, 0, f)
#else
		:: send(EXTEND, mine, 1, f)
#endif
		/* A lease that ended: the floor is at or above the mark then, and so is the word. */
#ifdef MUT_REHOLD_BELOW
		:: word = word || f; send(REHOLD, 0, 1, f)
#else
		:: MAY_REHOLD -> f = f || (mymark && TELLS); word = word || f; send(REHOLD, 0, 1, f)
#endif
		/* Sealed first. */
		:: send(RELEASE, 0, top, 1); f = 0; goto start
		fi;
		f = 0
	   }
	:: goto start                                           /* crash, or sealed */
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
