package clockhook

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Values in the stubs that stand for addresses, as in stub_linux_amd64.s.
const (
	markPage = 0x7a5ec10c00000001
	markReal = 0x7a5ec10c00000002
	markBack = 0x7a5ec10c00000003
	markEnd  = 0x7a5ec10c00000004

	maxStub = 1024 // bytes, of one stub; both share a page
)

// stubs returns where the code of the stubs begins in this program.
func stubs() (vdso, call unsafe.Pointer)

// stubCode returns the bytes of a stub, without the mark at its end.
func stubCode(at unsafe.Pointer) []byte {
	code := unsafe.Slice((*byte)(at), maxStub)
	end := bytes.Index(code, binary.LittleEndian.AppendUint64(nil, markEnd))
	if end < 0 {
		panic("clockhook: a stub without an end")
	}
	return slices.Clone(code[:end])
}

// fill replaces a mark by the address that it stands for, wherever it occurs.
func fill(code []byte, mark, address uint64) []byte {
	old := binary.LittleEndian.AppendUint64(nil, mark)
	if !bytes.Contains(code, old) {
		panic("clockhook: a stub without its mark")
	}
	return bytes.ReplaceAll(code, old, binary.LittleEndian.AppendUint64(nil, address))
}

// Symbols of a Go program. The function that enters the kernel has moved twice.
const (
	symMain  = "runtime.main"
	symClock = "runtime.vdsoClockgettimeSym"
)

var symCall = []string{
	"internal/runtime/syscall/linux.Syscall6", "internal/runtime/syscall.Syscall6", "runtime/internal/syscall.Syscall6",
}

// entry is how that function begins: four moves, SYSCALL, and the comparison with
// -4095 that its second half starts with.
var entry = []byte{
	0x49, 0x89, 0xf2, // MOVQ SI, R10
	0x48, 0x89, 0xfa, // MOVQ DI, DX
	0x48, 0x89, 0xce, // MOVQ CX, SI
	0x48, 0x89, 0xdf, // MOVQ BX, DI
	0x0f, 0x05, // SYSCALL
	0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, // CMPQ AX, $-4095
}

const (
	atSyscall = 12 // offset of SYSCALL in entry
	behind    = 14 // offset of the next instruction
)

// jump returns the code of a jump through R11, which SYSCALL would overwrite.
func jump(to uint64) []byte {
	code := binary.LittleEndian.AppendUint64([]byte{0x49, 0xbb}, to) // MOVQ $to, R11
	return append(code, 0x41, 0xff, 0xe3)                            // JMP R11
}

// target says where the symbols of a program lie, before it is loaded.
type target struct {
	main, clock, call uint64
	entry             uint64 // the file's entry point
}

// targets remembers programs that were looked through: a symbol table of ours has
// tens of thousands of entries.
var targets sync.Map // targetKey to target

type targetKey struct {
	path string
	size int64
	time time.Time
}

// targetOf looks up the symbols of the program at path.
func targetOf(path string) (target, error) {
	info, err := os.Stat(path)
	if err != nil {
		return target{}, err
	}
	key := targetKey{path, info.Size(), info.ModTime()}
	if t, ok := targets.Load(key); ok {
		return t.(target), nil
	}
	t, err := readTarget(path)
	if err != nil {
		return target{}, fmt.Errorf("%w: %s: %w", ErrUnsupported, path, err)
	}
	targets.Store(key, t)
	return t, nil
}

func readTarget(path string) (target, error) {
	f, err := elf.Open(path)
	if err != nil {
		return target{}, err
	}
	defer f.Close()
	if f.Machine != elf.EM_X86_64 {
		return target{}, fmt.Errorf("a program for %v", f.Machine)
	}
	symbols, err := f.Symbols()
	if err != nil {
		return target{}, fmt.Errorf("symbols: %w", err)
	}
	t := target{entry: f.Entry}
	for _, s := range symbols {
		switch {
		case s.Name == symMain:
			t.main = s.Value
		case s.Name == symClock:
			t.clock = s.Value
		case slices.Contains(symCall, s.Name):
			t.call = s.Value
		}
	}
	if t.main == 0 || t.clock == 0 || t.call == 0 {
		return target{}, errors.New("no Go program, or of a Go that is laid out differently: a symbol is missing")
	}
	return t, nil
}

// tracee is a process that this thread traces.
type tracee struct{ pid int }

// awaitExec waits until the process is stopped at its first instruction.
func (t tracee) awaitExec() error {
	sig, err := t.wait()
	if err != nil {
		return fmt.Errorf("%w: ptrace: %w", ErrUnsupported, err)
	}
	if sig != syscall.SIGTRAP {
		return fmt.Errorf("%w: ptrace: stopped by %v", ErrUnsupported, sig)
	}
	return nil
}

// inject runs the process to runtime.main, puts the stubs in, and lets it go.
// inherited is the process's descriptor of the shared page; it is closed there.
func (t tracee) inject(at target, inherited int) error {
	if err := t.awaitExec(); err != nil {
		return err
	}
	// If this program dies meanwhile, no partly changed process may be left.
	if err := unix.PtraceSetOptions(t.pid, unix.PTRACE_O_EXITKILL); err != nil {
		return fmt.Errorf("ptrace options: %w", err)
	}
	base, err := t.loadBase(at.entry)
	if err != nil {
		return err
	}
	main, clock, call := at.main+base, at.clock+base, at.call+base
	if err := t.runTo(main); err != nil {
		return fmt.Errorf("run to %s: %w", symMain, err)
	}
	found := make([]byte, len(entry))
	if err := t.peek(call, found); err != nil {
		return err
	}
	if !bytes.Equal(found, entry) {
		return fmt.Errorf("the function that makes system calls begins with % x, which is not known", found)
	}
	var pointer [8]byte
	if err := t.peek(clock, pointer[:]); err != nil {
		return err
	}
	realClock := binary.LittleEndian.Uint64(pointer[:])
	if realClock == 0 {
		return errors.New("the kernel gives the program no vDSO")
	}

	gate := call + atSyscall
	data, err := t.call(gate, unix.SYS_MMAP, 0, pageWords*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED,
		uint64(inherited), 0)
	if err != nil {
		return fmt.Errorf("mmap of data: %w", err)
	}
	if _, err := t.call(gate, unix.SYS_CLOSE, uint64(inherited), 0, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	code, err := t.call(gate, unix.SYS_MMAP, 0, 2*maxStub, unix.PROT_READ|unix.PROT_EXEC,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uint64(0), 0)
	if err != nil {
		return fmt.Errorf("mmap of code: %w", err)
	}
	vdsoAt, callAt := stubs()
	vdso := fill(fill(stubCode(vdsoAt), markPage, data), markReal, realClock)
	plain := fill(fill(stubCode(callAt), markPage, data), markBack, call+behind)
	for _, w := range []struct {
		at    uint64
		bytes []byte
	}{
		{code, vdso},
		{code + maxStub, plain},
		{clock, binary.LittleEndian.AppendUint64(nil, code)},
		{call, jump(code + maxStub)},
	} {
		// Through ptrace, which may write where the process may not.
		if n, err := unix.PtracePokeData(t.pid, uintptr(w.at), w.bytes); err != nil || n != len(w.bytes) {
			return fmt.Errorf("write %d bytes at %#x: %w", len(w.bytes), w.at, err)
		}
	}
	if err := unix.PtraceDetach(t.pid); err != nil {
		return fmt.Errorf("ptrace detach: %w", err)
	}
	return nil
}

// loadBase returns by how much the program was moved when it was loaded: nothing,
// unless it is position-independent.
func (t tracee) loadBase(entry uint64) (uint64, error) {
	auxv, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", t.pid))
	if err != nil {
		return 0, err
	}
	for ; len(auxv) >= 16; auxv = auxv[16:] {
		const atEntry = 9
		if binary.LittleEndian.Uint64(auxv) == atEntry {
			return binary.LittleEndian.Uint64(auxv[8:]) - entry, nil
		}
	}
	return 0, errors.New("the kernel does not report where the program was loaded")
}

// runTo runs the process until it is about to execute the instruction at address.
func (t tracee) runTo(address uint64) error {
	var old [1]byte
	if err := t.peek(address, old[:]); err != nil {
		return err
	}
	if err := t.poke(address, []byte{0xcc}); err != nil { // INT3
		return err
	}
	for sig := syscall.Signal(0); ; {
		if err := unix.PtraceCont(t.pid, int(sig)); err != nil {
			return fmt.Errorf("ptrace cont: %w", err)
		}
		var err error
		if sig, err = t.wait(); err != nil {
			return err
		}
		if sig == syscall.SIGTRAP {
			break
		}
	}
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(t.pid, &regs); err != nil {
		return fmt.Errorf("ptrace regs: %w", err)
	}
	if regs.Rip != address+1 {
		return fmt.Errorf("stopped at %#x instead", regs.Rip)
	}
	regs.Rip = address
	if err := unix.PtraceSetRegs(t.pid, &regs); err != nil {
		return fmt.Errorf("ptrace regs: %w", err)
	}
	return t.poke(address, old[:])
}

// call makes the process execute a system call at gate, a SYSCALL instruction of
// its own, and leaves its registers as they were.
func (t tracee) call(gate, number uint64, args ...uint64) (uint64, error) {
	var saved unix.PtraceRegs
	if err := unix.PtraceGetRegs(t.pid, &saved); err != nil {
		return 0, fmt.Errorf("ptrace regs: %w", err)
	}
	regs := saved
	regs.Rip, regs.Rax, regs.Orig_rax = gate, number, ^uint64(0)
	regs.Rdi, regs.Rsi, regs.Rdx, regs.R10, regs.R8, regs.R9 = args[0], args[1], args[2], args[3], args[4], args[5]
	if err := unix.PtraceSetRegs(t.pid, &regs); err != nil {
		return 0, fmt.Errorf("ptrace regs: %w", err)
	}
	if err := unix.PtraceSingleStep(t.pid); err != nil {
		return 0, fmt.Errorf("ptrace step: %w", err)
	}
	sig, err := t.wait()
	if err != nil {
		return 0, err
	}
	if sig != syscall.SIGTRAP {
		return 0, fmt.Errorf("stopped by %v", sig)
	}
	if err := unix.PtraceGetRegs(t.pid, &regs); err != nil {
		return 0, fmt.Errorf("ptrace regs: %w", err)
	}
	if err := unix.PtraceSetRegs(t.pid, &saved); err != nil {
		return 0, fmt.Errorf("ptrace regs: %w", err)
	}
	if result := int64(regs.Rax); result < 0 && result > -4096 {
		return 0, syscall.Errno(-result)
	}
	return regs.Rax, nil
}

// wait waits until the process is stopped, and returns the signal that stopped it.
func (t tracee) wait() (syscall.Signal, error) {
	for {
		var status unix.WaitStatus
		switch _, err := unix.Wait4(t.pid, &status, unix.WALL, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait: %w", err)
		case status.Stopped():
			return status.StopSignal(), nil
		default:
			return 0, fmt.Errorf("it ended: %#x", uint32(status))
		}
	}
}

func (t tracee) peek(address uint64, out []byte) error {
	if n, err := unix.PtracePeekData(t.pid, uintptr(address), out); err != nil || n != len(out) {
		return fmt.Errorf("read %d bytes at %#x: %w", len(out), address, err)
	}
	return nil
}

func (t tracee) poke(address uint64, data []byte) error {
	if n, err := unix.PtracePokeData(t.pid, uintptr(address), data); err != nil || n != len(data) {
		return fmt.Errorf("write %d bytes at %#x: %w", len(data), address, err)
	}
	return nil
}
