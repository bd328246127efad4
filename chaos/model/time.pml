/*
 * The limit of how far a clock is followed, and its acceptance by an operator
 * (docs/decisions/clocks.md), checked for one claim: no ceiling is written
 * from a time that the evidence does not allow and that nobody accepted in this era.
 *
 * Time is abstracted to three levels: 0 is within the step limit of true time, 1 is beyond
 * it and within the downtime limit (an hour), 2 is beyond both (ten years). A clock is a
 * level chosen anew at each use. Each node has a sid of its own: that windows of one sid
 * are disjoint is the matter of lease.pml.
 *
 * The adversary: as in lease.pml, requests are applied late or never, replies are lost,
 * holder keys vanish, nodes restart without memory. Operators accept, and begin eras; an
 * accepted time stays in the store, as in a restored backup.
 *
 * -D selects a variant: see run.sh.
 */

#ifndef NODES
#define NODES 2
#endif
#ifndef MAXREQ
#define MAXREQ 4                /* writes sent in one history */
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

#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* ---- the store ---------------------------------------------------------- */

byte wall[NODES];               /* level that the record of node i's sid shows */
bit live[NODES];                /* holder key of node i's sid */
byte era = 1;
byte accLevel, accEra, accRev;  /* accepted-time; revision 0: absent */

/* ---- what only the checker knows ---------------------------------------- */

byte given;                     /* level that operators have accepted in this era */
byte allowed;                   /* highest level written so far, lawfully */
byte sent;
bit applied[MAXREQ];
bit unlawful;                   /* a level was written that nothing allowed */
bit overwritten;                /* an acceptance replaced one that its operator had not seen */

/* One write of level c on its way, compared with era e: applied at any time, or never.
   fresh: by a process that had written nothing, beside no live holder. */
proctype Request(byte n, i, c, e; bit fresh)
{
end:	if
	:: atomic {
#ifndef MUT_NO_ERA_COMPARE
		e == era ->
#endif
		TRACE("store    applies level %d of node %d\n", c, i)
		if
		:: c <= allowed || c <= given || (fresh && c <= 1)
		:: else -> unlawful = 1
		fi;
		assert(!unlawful);
		if
		:: c == 2 && given == 2 -> reached(1)
		:: c == 1 && given == 0 && allowed == 0 -> reached(2)
		:: c == 2 && given < 2 -> reached(3)    /* accepted in an era before, and written there */
		:: else
		fi;
		allowed = MAX(allowed, c);
		wall[i] = c;
		live[i] = 1;
		applied[n] = 1
	   }
#ifndef MUT_NO_ERA_COMPARE
	:: e != era                     /* it can only be refused any more */
#endif
	fi
}

/* To list and to send is one step: a request that waits is as old as a list that does. */
proctype Node(byte i)
{
	byte own, cur;          /* own: level of the reference, with known */
	bit known, waits;

start:	atomic { own = 0; known = 0; waits = 0; cur = 0 };
	do
	:: atomic { sent < MAXREQ ->
		byte j, c, acc, holders, latest;
		bit beside, fresh;
		do
		:: j < NODES ->
			latest = MAX(latest, wall[j]);
			if
			:: j != i && live[j] -> beside = 1; holders = MAX(holders, wall[j])
			:: else
			fi;
			j++
		:: else -> break
		od;
#ifdef MUT_ANY_ERA
		acc = accLevel;
#else
		acc = (accEra == era -> accLevel : 0);
#endif
		fresh = !known && !beside;
		if :: c = 0 :: c = 1 :: c = 2 fi;
		if
		:: (c <= acc || (beside && c <= holders) || (known && c <= own) || (fresh && c <= MAX(latest, 1))
#ifdef MUT_EXTEND_UNLIMITED
			|| known
#endif
#ifdef MUT_EXTEND_CHAINED
			|| (known && c <= own + 1)
#endif
#ifdef MUT_ACQUIRE_UNLIMITED
			|| fresh
#endif
#ifdef MUT_CONFIRMED
			|| beside       /* a majority confirms the clock, and that was enough */
#endif
			) ->
#ifdef MUT_TRUST_UNCONFIRMED
			own = MAX(own, c); known = 1;
#endif
			TRACE("node %d   sends level %d\n", i, c)
			run Request(sent, i, c, era, fresh);
			cur = sent; waits = 1;
			sent++
		:: else                         /* refused by the guard */
		fi;
		j = 0; c = 0; acc = 0; holders = 0; latest = 0; beside = 0; fresh = 0
	   }
	:: atomic { waits && applied[cur] -> own = MAX(own, wall[i]); known = 1; waits = 0; cur = 0 } /* confirmed */
	:: d_step { live[i] -> live[i] = 0 }    /* the holder key goes with its lease */
	:: (known || waits) -> goto start       /* crash */
	od
}

/* An operator reads, thinks, and accepts level 2. */
proctype Operator(byte i)
{
	byte e, rev;
	atomic { e = era; rev = accRev };
	atomic {
		if
#ifndef MUT_ACCEPT_UNGUARDED
		:: e == era && rev == accRev ->
#else
		:: true ->
#endif
			if :: rev != accRev || e != era -> overwritten = 1 :: else fi;
			TRACE("operator %d accepts in era %d\n", i, era)
			assert(!overwritten);
			accLevel = 2; accEra = e; accRev++;
			given = 2
#ifndef MUT_ACCEPT_UNGUARDED
		:: else -> reached(4)
#endif
		fi
	}
}

/* A new era: what was accepted is void, and stays in the store. */
active proctype Admin()
{
	if
	:: atomic { era++; given = 0; TRACE("admin    begins era %d%c\n", era, 32) }
	:: skip
	fi
}

init
{
	atomic {
		run Node(0); run Node(1);
#ifdef OPERATORS
		run Operator(2);
#endif
		run Operator(1)
	}
}
