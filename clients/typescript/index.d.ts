/** The forms of an ID. int and flake are the same 64 bits, ulid and uuid the same 128. */
export type Form = 'int' | 'flake' | 'ulid' | 'uuid'

/** What an ID of a form is in JavaScript: a number cannot hold it. */
export type IdOf<F extends Form> = F extends 'int' ? bigint : string

/** An ID in any form. A number is one only up to 2^53-1, as in the layout js53. */
export type AnyId = bigint | string | number

export type ErrorKind =
  'invalid' | 'refused' | 'unavailable' | 'timeout' | 'canceled' | 'protocol' | 'empty' | 'closed' | 'lost'

/** What calls of this package fail with. */
export class AllocatorError extends Error {
  constructor (kind: ErrorKind, message: string, details?: {
    cause?: unknown, reason?: string, retryAfterMs?: number, metadata?: Record<string, string>, node?: string
  })

  /**
   * - invalid: an argument or an option is wrong; found before any request
   * - refused: a node answered that it issued nothing; reason says why
   * - unavailable: no node answered within the client's timeoutMs
   * - timeout: no node answered within the timeoutMs of the call
   * - canceled: its AbortSignal was aborted; cause is the signal's reason
   * - protocol: an answer is none that a node gives; its IDs are not used
   * - empty: nextNow has no ID to give
   * - closed: the client was closed
   * - lost: the worker number is not this program's any more
   */
  readonly kind: ErrorKind
  /** Why a node refused, such as CLOCK_SKEW: docs/reference/refusals.md has all. */
  readonly reason?: string
  /** When the same request can succeed; absent: waiting does not help. */
  readonly retryAfterMs?: number
  /** The values behind the message of a refusal. */
  readonly metadata?: Record<string, string>
  /** The URL of the node that answered so, or did not answer. */
  readonly node?: string
}

export interface CallOptions {
  /** In place of the client's timeoutMs. */
  timeoutMs?: number
  signal?: AbortSignal
}

export interface NextOptions<F extends Form> extends CallOptions {
  form?: F
  /** The IDs are greater than this one, which another program may have made. */
  after?: AnyId
}

/** How nodes are reached. */
export interface Nodes {
  /** URLs of nodes, asked in turn, or of a load balancer: http://, https://, or unix:///path of an agent. */
  nodes: readonly string[]
  /** Bounds a call with all attempts. Default: 10000. */
  timeoutMs?: number
  /** After it the next node is asked. Default: 2000. */
  attemptTimeoutMs?: number
  /** The bearer token, or what returns it, asked for each request. */
  token?: string | (() => string | Promise<string>)
  /** A file with the token, which others cannot read. It is read again when it changes. */
  tokenFile?: string
  /** Allows a token without TLS, for networks that encrypt. */
  plaintextToken?: boolean
  /** A file with the certificate of the authority that signed the nodes' certificates. */
  caFile?: string
  /** Options of node:tls for https URLs, such as cert and key. */
  tls?: object
}

export interface Options<F extends Form = 'int'> extends Nodes {
  /** The form of IDs where a call names none. Default: int. */
  form?: F
  /** How many IDs are held for nextNow; true: 64. Default: none. */
  prefetch?: number | boolean
  /** How old an ID may be when nextNow gives it. Default: 1000. */
  prefetchMaxAgeMs?: number
  /** Both clocks in milliseconds, for tests: a monotonic one, and Unix time. */
  clock?: { now: () => number, wall: () => number }
}

export interface Watermark {
  /** No ID with a time below it is issued any more. */
  unixMs: number
  time: Date
  /** All IDs that can still appear are at or above it. */
  int: bigint
  flake: string
  ulid?: string
  uuid?: string
  lagMs: number
  /** It lags so far that an operator should look. */
  held: boolean
  conditional?: { node: string, sid: number, untilUnixMs: number }
  blockedBy: Array<{ node: string, sid: number, sinceUnixMs: number, why: string, text: string }>
  notCovered: number[]
}

/** A client: one serves the whole program. Nothing of it keeps the process alive. */
export class Allocator<D extends Form = 'int'> {
  constructor (options: Options<D>)
  /** Resolves to one ID, greater than all whose calls ended before. Calls that wait share a request. */
  next<F extends Form = D> (options?: NextOptions<F>): Promise<IdOf<F>>
  /** Resolves to count IDs in rising order, by one request for each 10,000 of them. */
  nextMany<F extends Form = D> (count: number, options?: NextOptions<F>): Promise<Array<IdOf<F>>>
  /**
   * Returns an ID that was fetched before, at once; needs prefetch. It throws an AllocatorError of kind empty where
   * none is held: before the first call, after a pause, and after the clock was set. The next ones are being fetched
   * then. IDs of 64 and of 128 bits have one order, so a program that needs both at once has two clients.
   */
  nextNow<F extends Form = D> (form?: F): IdOf<F>
  /** Resolves when IDs are held for nextNow: at once if some are. */
  fill (options?: CallOptions & { form?: Form }): Promise<void>
  /** Resolves to the watermark, which never falls. */
  watermark (options?: CallOptions): Promise<Watermark>
  /** Resolves to the watermark once no ID at or below this one can appear any more. */
  waitFor (id: AnyId, options?: CallOptions): Promise<Watermark>
  /** Lets calls that are under way finish, then closes the connections. */
  close (): Promise<void>
}

export interface WorkerOptions extends Nodes {
  /** What people know the worker by. Default: the host and the process. */
  name?: string
  /** How long a unit of the generator's time is; permit is asked with its first millisecond. Default: 1. */
  unitMs?: number
  /** Default: 90000, which outlasts the interval of a crashed worker. */
  openTimeoutMs?: number
  /** As that of Options. */
  clock?: Options['clock']
}

/** A worker number that nobody else has, for a generator outside of the nodes, kept extended until close. */
export class Worker {
  private constructor ()
  /** Resolves to a worker once its interval has begun. */
  static open (options: WorkerOptions): Promise<Worker>
  readonly number: number
  /** The number and how often it was acquired, such as 17-4. */
  readonly id: string
  /**
   * Aborted when the worker is lost: nodes do not know it any more, or this memory may be a copy, as a wall clock that
   * was set forward by a second shows. Open another one.
   */
  readonly lost: AbortSignal
  /** The milliseconds [notBefore, notAfter) of its IDs; notAfter is 0 once it is closed or lost. */
  readonly interval: { notBefore: number, notAfter: number }
  /**
   * Returns if an ID may be used whose own time is this (Unix milliseconds). Ask after the ID was made, and before it
   * is used. It throws an AllocatorError: lost, closed, or refused with the reason NOT_YET or EXPIRED.
   */
  permit (unixMs: number): void
  /** Gives the number back. The next worker with it begins after the last time that permit allowed. */
  close (): Promise<void>
  /** close for a generator that does not ask permit: no ID has this time (Unix milliseconds) or a later one. */
  release (usedUntil?: number): Promise<void>
}

interface Narrow<F extends Form> { form: F, int: bigint, flake: string }
interface Wide<F extends Form> { form: F, ulid: string, uuid: string }
export type ParsedId = Narrow<'int'> | Narrow<'flake'> | Wide<'ulid'> | Wide<'uuid'>

/** Reads an ID: its form, and all that the same bits are written as. */
export function parse (id: AnyId): ParsedId
/** Writes an ID in another form. A ULID or UUID gives its flake; a flake gives no ULID, which has random bits too. */
export function convert<F extends Form> (id: AnyId, form: F, layout?: string): IdOf<F>
/** The time of an ID. layout is the space's, as allocator status shows it. Default: scalable. */
export function timeOf (id: AnyId, layout?: string): Date
/** The number of the node or worker that made an ID. */
export function sidOf (id: AnyId, layout?: string): number
/** The smallest ID of a time (a Date, or Unix milliseconds): a bound for a range of IDs. */
export function firstOf<F extends Form = 'int'> (time: Date | number, form?: F, layout?: string): IdOf<F>
