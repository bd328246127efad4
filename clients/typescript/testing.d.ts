import { Allocator, Form, Options } from './index.js'

/**
 * A client without nodes, which makes the same IDs in every run: its clock begins at 2026-01-01 and moves with each ID
 * and with advance. All else is the real client's.
 */
export class FakeAllocator<D extends Form = 'int'> extends Allocator<D> {
  constructor (options?: Partial<Options<D>>)
  /** Has requests refused, for a reason such as CLOCK_SKEW, until serve. */
  refuse (reason: string, options?: { retryAfterMs?: number, status?: number }): void
  /** Has requests served again. The clock moves on by 5 s, so that no delay of a refusal is waited for. */
  serve (): void
  /** Moves the clock. */
  advance (ms: number): void
  /** How many requests there were. */
  readonly requests: number
}
