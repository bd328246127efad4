/*
 * IDs that a PostgreSQL database makes by itself (internal/sqlid), checked for claim I10: no word is used twice, by
 * whatever sessions, servers and runners, and each lies in a slice that its runner was granted.
 *
 * Words are small numbers. A slice is SIZE words of one worker number; its runner cuts it once, and the intervals of
 * two runners are disjoint, which is the matter of worker.pml. A server has the first word and the end of the slice,
 * the next word, and what the slice is bound to, which is the process of the server. A session looks whether the slice
 * is of this server, then reads its end, then takes a word, and then reads the first word: four steps. A write has four
 * as well, and writes of one server exclude each other.
 *
 * The adversary: sessions and runners stop between any two steps, for as long as they like or forever; replies are lost
 * (a runner cuts a new slice in any case); the server crashes, or is copied: as a base backup, which begins empty, or
 * with all that it has, which is bound to the other server; somebody sets the next word to an earlier one, as a dump
 * of the data does, so far below the slice that draws do not reach it. Of a copy that is bound to nothing else, a clone
 * of the running machine, no claim is made.
 *
 * -D selects a variant: see run.sh.
 */

#ifndef SIZE
#define SIZE 2
#endif
#ifndef CUTS
#define CUTS 2                  /* slices in one history */
#endif
#ifndef DRAWS
#define DRAWS 3                 /* words that sessions take in one history */
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef RESETS
#define RESETS 0                /* words that are set by hand */
#endif
#define WORDS (SIZE * CUTS + DRAWS + 2)
#define SERVERS 2

byte word[SERVERS], low[SERVERS], stop[SERVERS], bound[SERVERS];
byte id[SERVERS];               /* what a slice is bound to: a process of the server, and the database */
byte ids = 1;
bool writing[SERVERS];          /* the lock of writers */
bool up[SERVERS];
byte epoch[SERVERS];            /* of the server: a session does not outlive it */

byte cut = 1;                   /* All words below were cut. One order for all runners: intervals are disjoint. */
byte draws, cuts, crashes, resets;
bool used[WORDS];
bool granted[WORDS];
bool twice;

/* use takes a word for an ID. */
inline use(w) {
	twice = used[w] || !granted[w];
	assert(!(twice));       /* I10 */
	used[w] = true
}

proctype Session(byte s) {
	byte end, w, least, was;
	bool here;
	do
	:: atomic { draws < DRAWS && up[s] -> draws++; was = epoch[s] };
#ifndef BOUND_LAST
	   atomic { epoch[s] == was -> here = (bound[s] == id[s]) };
#endif
#ifdef TAKES_FIRST
	   atomic { epoch[s] == was -> w = word[s]; word[s]++ };
	   atomic { epoch[s] == was -> end = stop[s] };
#else
	   atomic { epoch[s] == was -> end = stop[s] };
#ifdef LOW_EARLY
	   atomic { epoch[s] == was -> least = low[s] };
#endif
	   atomic { epoch[s] == was -> w = word[s]; word[s]++ };
#endif
#if !defined(NO_LOW) && !defined(LOW_EARLY)
	   atomic { epoch[s] == was -> least = low[s] };
#endif
	   atomic {
#ifdef BOUND_LAST
		here = (bound[s] == id[s]);
#endif
#ifdef UNBOUND
		here = true;
#endif
		if
		:: w < end && w >= least && here && epoch[s] == was -> use(w)
		:: else -> skip
		fi;
		end = 0; w = 0; least = 0; here = false
	   }
	:: break                /* It stops, here or where it waits for a server that has crashed. */
	od
}

/* A runner writes slices into any server that takes writes, also an old primary and its successor in turn. */
proctype Runner() {
	byte s, first, end, was, i;
	do
	:: atomic { cuts < CUTS ->
		cuts++;
		first = cut; end = first + SIZE;
#ifdef CUTS_TWICE
		if :: true -> cut = end :: true -> skip fi;     /* A reply was lost, and it sends the slice again. */
#else
		cut = end;
#endif
		for (i : 0 .. SIZE - 1) { granted[first + i] = true };
		i = 0;
		select (s : 0 .. SERVERS - 1)
	   };
	   if
	   :: atomic { up[s] && !writing[s] ->
		was = epoch[s];
#ifndef UNLOCKED
		writing[s] = true
#endif
	      };
	      if
#ifdef BELOW
	      :: true ->
#else
	      :: atomic { epoch[s] == was && first >= stop[s] -> skip };
#endif
#ifdef END_FIRST
		 atomic { epoch[s] == was -> low[s] = first; bound[s] = id[s]; stop[s] = end };
		 atomic { epoch[s] == was -> word[s] = first };
#else
		 atomic { epoch[s] == was -> low[s] = first };
		 atomic { epoch[s] == was -> word[s] = first };
		 atomic { epoch[s] == was -> bound[s] = id[s] };
		 atomic { epoch[s] == was -> stop[s] = end };
#endif
	      :: epoch[s] != was || first < stop[s] -> skip
	      fi;
	      atomic { if :: epoch[s] == was -> writing[s] = false :: else -> skip fi }
	   :: skip              /* It was not sent. */
	   fi
	:: break
	od
}

/* The server crashes and starts again, or the other one becomes a copy of it. */
active proctype Adversary() {
	byte s;
	do
	:: atomic { crashes < CRASHES ->
		crashes++;
		select (s : 0 .. SERVERS - 1);
		epoch[s]++; writing[s] = false;
		if
		:: true ->      /* crash, promotion or base backup: what is unlogged is empty, the process may be the same */
			if :: up[s] -> skip :: ids++; id[s] = ids fi;
#ifdef LOGGED
			if :: word[s] > 0 -> word[s]-- :: else fi; /* The last word is not on the disk, the end is. */
			bound[s] = id[s]
#else
			word[s] = 0; low[s] = 0; stop[s] = 0; bound[s] = 0
#endif
		:: true ->      /* it was shut down, and starts again */
			ids++; id[s] = ids
		:: true ->      /* a copy with all that the other server has */
			ids++; id[s] = ids;
			word[s] = word[1 - s]; low[s] = low[1 - s]; stop[s] = stop[1 - s]; bound[s] = bound[1 - s]
		fi;
		up[s] = true; s = 0
	   }
	:: atomic { resets < RESETS && low[0] > DRAWS ->        /* the next word is set to an earlier one */
		resets++;
		select (s : 1 .. low[0] - DRAWS);
		word[0] = s; s = 0
	   }
	:: break
	od
}

init {
	atomic {
		up[0] = true; id[0] = 1;
		run Session(0); run Session(1);
#ifdef THREE_SESSIONS
		run Session(0);
#endif
		run Runner()
#ifdef TWO_RUNNERS
		; run Runner()
#endif
	}
}
