/*
 * Who raises the watermark, and when (docs/DESIGN.md#the-watermark, 7), checked for progress: once it can be raised,
 * it is, within a bound. Holders of lower sids may be unable to raise it, for good, and the rest of what the record
 * says (which sids are not covered, for instance) may change at any tick, so that those write it again and again.
 *
 * What holds it back is the window of a holder that vanished, which only nodes with confirmed clocks can pass, and
 * those within an interval of its end, however many the others are. With DOWNTIME only processes that have held a
 * sid for long can take it along, and the bound is that of the highest sid.
 *
 * -D selects a variant: see run.sh.
 */

#ifndef NODES
#define NODES 3
#endif
#ifndef PROBE
#define PROBE 0
#endif
#define reached(n) assert(PROBE != n)
#define EVERY 2                 /* ticks between two raises of a node */
#define STEPS 2                 /* by so many intervals each waits longer than the holder of the next lower sid */
#define PASSES 5                /* tick at which the window has passed, with the grace */
#define NEVER 99
#ifdef DOWNTIME
#define LIMIT (PASSES + EVERY * (1 + STEPS * (NODES - 1)))
#define PASS_AT NEVER
#else
#define LIMIT (PASSES + EVERY)
#ifdef MUT_FROM_NOW
#define PASS_AT ((now > PASSES -> now : PASSES) + jitter)
#else
#define PASS_AT (PASSES + jitter)
#endif
#endif

#ifdef TRACE_STEPS
#define TRACE(f, a, b) printf(f, a, b);
#else
#define TRACE(f, a, b)
#endif

byte now;
bit able[NODES];                /* it can raise the mark */
byte markAt[NODES], passAt[NODES];
bit mark;                       /* it was raised */
bit text, written;              /* the rest of what the record is to say, and says */
bit late;

/* passes sets when i tries to pass the window. */
inline passes(i)
{
	byte jitter;            /* an adversary's, where the code's is random */
	select (jitter : 0 .. EVERY - 1);
	passAt[i] = PASS_AT;
	jitter = 0
}

/* written_by has all others read what i wrote. */
inline written_by(i)
{
	for (j : 0 .. NODES - 1) {
		if
		:: j != i ->
#ifdef MUT_PUT_OFF_BY_TEXT
			markAt[j] = now + EVERY;
#else
			skip;           /* only a raise puts others off */
#endif
			passes(j)
		:: else
		fi
	}
	j = 0
}

#ifdef MUT_LEFT_TO_THE_LOWEST
#define PASS_DUE false
#else
#define PASS_DUE (able[i] && now >= passAt[i])
#endif

active proctype Space()
{
	byte i, j;

	atomic {
		for (i : 0 .. NODES - 1) {
			if :: able[i] = 1 :: i < NODES - 1 -> able[i] = 0 fi;   /* one can, at least */
			select (j : 0 .. EVERY);
			markAt[i] = j;
			passes(i)
		}
		i = 0; j = 0
	};
end:	do
	:: atomic { !mark ->
		if :: text = !text :: skip fi;
		for (i : 0 .. NODES - 1) {
			if
			:: now >= markAt[i] + EVERY * STEPS * i || PASS_DUE ->
				markAt[i] = now + EVERY;
				passes(i);
				if
				:: able[i] && now >= PASSES ->
					TRACE("node %d raises the mark at tick %d\n", i, now)
					mark = 1;
					if :: i == NODES - 1 -> reached(1) :: else fi
				:: else ->
					if
					:: text != written ->
						TRACE("node %d writes the text at tick %d\n", i, now)
						written = text;
						written_by(i)
					:: else
					fi
				fi
			:: else
			fi
		}
		i = 0;
		now++;
		late = !mark && now > LIMIT;
		assert(!late)
	   }
	od
}
