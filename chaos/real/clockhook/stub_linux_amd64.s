#include "textflag.h"

// Code that runs in the hooked process. It is copied there, never called here,
// and so has to be independent of where it lies: addresses are loaded from
// immediates that Start fills in, and are recognized by these values.
#define PAGE $0x7a5ec10c00000001 // the shared page
#define REAL $0x7a5ec10c00000002 // the vDSO's clock_gettime
#define BACK $0x7a5ec10c00000003 // the instruction of the patched function behind its SYSCALL
#define END  QUAD $0x7a5ec10c00000004

// Byte offsets into the shared page: 8 × the words in hook.go.
#define SEQ       0
#define CLOCK     64
#define DELAY     1024
#define ERRNO     1032
#define W_ERRNO   1040
#define ADJ_ON    1088
#define ADJ_STATE 1096
#define ADJ_STAT  1104
#define ADJ_MAX   1112
#define ADJ_EST   1120
#define N_VDSO    2048
#define N_PLAIN   2112
#define N_ADJ     2176
#define N_SYNCS   2240
#define N_SLOWED  2248
#define N_FAILED  2256
#define N_UNWRIT  2264

// ADJUST adds to the timespec at SI what the page at R8 says of clock DI. R10
// holds what SEQ was before the timespec was read: if that has changed, the values
// may be newer than the reading, and ADJUST goes to label again to read both anew.
// So nobody adds today's offset to a reading of yesterday, however long a thread
// was held between the two.
//
// It uses AX, CX, DX, R9 and R11, and no stack. A clock that the page does not
// know ends at label none.
#define ADJUST(none, again, positive) \
	CMPL	DI, $15; \
	JHI	none; \
	MOVL	DI, R9; \
	SHLQ	$5, R9; \
	LEAQ	CLOCK(R8)(R9*1), R9; \
	MOVQ	0(SI), AX; \
	IMUL3Q	$1000000000, AX, AX; \
	ADDQ	8(SI), AX; \
	SUBQ	24(R9), AX; \
	IMULQ	16(R9); \
	SHRQ	$32, DX, AX; \
	ADDQ	8(R9), AX; \
	MOVQ	0(R9), R11; \
	CMPQ	R10, SEQ(R8); \
	JNE	again; \
	ADDQ	8(SI), AX; \
	MOVQ	$1000000000, CX; \
	CQO; \
	IDIVQ	CX; \
	TESTQ	DX, DX; \
	JGE	positive; \
	ADDQ	CX, DX; \
	DECQ	AX; \
positive: \
	ADDQ	R11, AX; \
	ADDQ	AX, 0(SI); \
	MOVQ	DX, 8(SI)

// Stands in for the vDSO's clock_gettime: C's convention, on the stack of the
// runtime's g0.
TEXT vdsoStub<>(SB),NOSPLIT|NOFRAME,$0-0
	MOVQ	PAGE, R8
	INCQ	N_VDSO(R8)
again:
	MOVQ	SEQ(R8), R10
	TESTQ	$1, R10 // odd: the values are being changed
	JEQ	ask
	MOVL	$24, AX // sched_yield: whoever changes them may need this processor
	SYSCALL
	JMP	again
ask:
	PUSHQ	DI
	PUSHQ	SI
	PUSHQ	R10 // three: a C function finds its stack aligned to 16
	MOVQ	REAL, AX
	CALL	AX
	POPQ	R10
	POPQ	SI
	POPQ	DI
	TESTL	AX, AX
	JNE	done
	MOVQ	PAGE, R8
	ADJUST(none, again, positive)
none:
	XORL	AX, AX
done:
	RET
	END

// Stands in for the first half of Syscall6: the number in AX and the arguments in
// BX, CX, DI, SI, R8, R9, as Go passes them. All other registers but R14, R15, X15,
// SP and BP are free. It goes back behind the SYSCALL, with the result in AX, DX.
TEXT callStub<>(SB),NOSPLIT|NOFRAME,$0-0
	CMPQ	AX, $228 // clock_gettime
	JEQ	gettime
	CMPQ	AX, $74  // fsync
	JEQ	sync
	CMPQ	AX, $75  // fdatasync
	JEQ	sync
	CMPQ	AX, $159 // adjtimex
	JEQ	adjtimex
	CMPQ	AX, $1   // write
	JEQ	write
	CMPQ	AX, $18  // pwrite64
	JEQ	write
	CMPQ	AX, $285 // fallocate
	JEQ	write
plain:
	MOVQ	SI, R10
	MOVQ	DI, DX
	MOVQ	CX, SI
	MOVQ	BX, DI
	SYSCALL
back:
	MOVQ	BACK, R11
	JMP	R11

gettime:
	MOVQ	PAGE, R8
	INCQ	N_PLAIN(R8)
	MOVQ	CX, SI
	MOVQ	BX, DI
again:
	MOVQ	SEQ(R8), R10
	TESTQ	$1, R10
	JEQ	ask
	MOVL	$24, AX // sched_yield: whoever changes them may need this processor
	SYSCALL
	JMP	again
ask:
	MOVL	$228, AX
	SYSCALL // changes AX, CX and R11, no more
	TESTQ	AX, AX
	JNE	back
	ADJUST(none, again, positive)
none:
	XORL	AX, AX
	XORL	DX, DX
	JMP	back

adjtimex:
	MOVQ	BX, DI
	SYSCALL
	TESTQ	AX, AX
	JLT	back
	MOVQ	PAGE, R8
	CMPQ	ADJ_ON(R8), $0
	JEQ	back
	INCQ	N_ADJ(R8)
	MOVQ	ADJ_MAX(R8), R9
	MOVQ	R9, 24(BX) // maxerror
	MOVQ	ADJ_EST(R8), R9
	MOVQ	R9, 32(BX) // esterror
	MOVQ	ADJ_STAT(R8), R9
	MOVL	R9, 40(BX) // status
	MOVQ	ADJ_STATE(R8), AX
	XORL	DX, DX
	JMP	back

sync:
	MOVQ	AX, R12
	MOVQ	PAGE, R13
	INCQ	N_SYNCS(R13)
	MOVQ	DELAY(R13), AX
	TESTQ	AX, AX
	JEQ	quick
	INCQ	N_SLOWED(R13)
	MOVQ	$1000000000, CX
	CQO
	IDIVQ	CX
	SUBQ	$16, SP
	MOVQ	AX, 0(SP)
	MOVQ	DX, 8(SP)
sleep:
	MOVL	$35, AX // nanosleep, which leaves the rest in place when a signal ends it
	MOVQ	SP, DI
	MOVQ	SP, SI
	SYSCALL
	CMPQ	AX, $-4 // EINTR
	JEQ	sleep
	ADDQ	$16, SP
quick:
	MOVQ	ERRNO(R13), AX
	XORL	DX, DX
	TESTQ	AX, AX
	JNE	fail
	MOVQ	R12, AX
	MOVQ	BX, DI
	SYSCALL
	JMP	back
write: // of four arguments at most
	MOVQ	PAGE, R13
	CMPQ	W_ERRNO(R13), $0
	JEQ	plain
	CMPQ	BX, $2 // standard output and errors are the program's log
	JLS	plain
	MOVQ	AX, R12
	MOVQ	CX, R8
	MOVQ	DI, R9
	MOVQ	SI, R10
	MOVL	$8, AX // lseek to where it is: sockets and pipes have no such place
	MOVQ	BX, DI
	XORL	SI, SI
	MOVL	$1, DX
	SYSCALL
	MOVQ	AX, R11
	MOVQ	R12, AX
	MOVQ	R8, CX
	MOVQ	R9, DI
	MOVQ	R10, SI
	TESTQ	R11, R11
	JLT	plain
	MOVQ	W_ERRNO(R13), AX
	TESTQ	AX, AX
	JEQ	healed
	INCQ	N_UNWRIT(R13)
	XORL	DX, DX
	NEGQ	AX
	JMP	back
healed:
	MOVQ	R12, AX
	JMP	plain
fail:
	INCQ	N_FAILED(R13)
	NEGQ	AX
	JMP	back
	END

// func stubs() (vdso, call unsafe.Pointer)
TEXT ·stubs(SB),NOSPLIT,$0-16
	LEAQ	vdsoStub<>(SB), AX
	MOVQ	AX, vdso+0(FP)
	LEAQ	callStub<>(SB), AX
	MOVQ	AX, call+8(FP)
	RET
