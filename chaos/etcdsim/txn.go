package etcdsim

import (
	"bytes"
	"cmp"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// maxOps is etcd's --max-txn-ops.
const maxOps = 128

// checkTxn checks a transaction as etcd does before it knows which branch it
// will take. A nested one may have as many operations as the outer one leaves of most.
func (s *store) checkTxn(r *pb.TxnRequest, most int) error {
	ops := max(len(r.Compare), len(r.Success), len(r.Failure))
	if ops > most {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.Compare {
		if len(c.Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, branch := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range branch {
			var err error
			switch op := op.Request.(type) {
			case *pb.RequestOp_RequestRange:
				if len(op.RequestRange.Key) == 0 {
					err = rpctypes.ErrGRPCEmptyKey
				}
			case *pb.RequestOp_RequestPut:
				err = s.checkPut(op.RequestPut)
			case *pb.RequestOp_RequestDeleteRange:
				if len(op.RequestDeleteRange.Key) == 0 {
					err = rpctypes.ErrGRPCEmptyKey
				}
			case *pb.RequestOp_RequestTxn:
				if n := op.RequestTxn; len(n.Compare)+len(n.Failure) > 0 {
					err = errMissing
				} else {
					err = s.checkTxn(n, most-ops)
				}
			}
			if err != nil {
				return err
			}
		}
		if overlap(flat(branch)) {
			return rpctypes.ErrGRPCDuplicateKey
		}
	}
	return nil
}

// flat returns the operations of a branch with those of nested transactions, which compare nothing.
func flat(branch []*pb.RequestOp) (out []*pb.RequestOp) {
	for _, op := range branch {
		if n := op.GetRequestTxn(); n != nil {
			out = append(out, flat(n.Success)...)
		} else {
			out = append(out, op)
		}
	}
	return out
}

// overlap reports whether a branch puts a key twice, or puts one that it deletes.
func overlap(branch []*pb.RequestOp) bool {
	puts := map[string]bool{}
	for _, op := range branch {
		if put := op.GetRequestPut(); put != nil {
			if puts[string(put.Key)] {
				return true
			}
			puts[string(put.Key)] = true
		}
	}
	for _, op := range branch {
		if del := op.GetRequestDeleteRange(); del != nil {
			in := span(del.Key, del.RangeEnd)
			for key := range puts {
				if in(key) {
					return true
				}
			}
		}
	}
	return false
}

// txn carries out a transaction that passed checkTxn, whole or, with an error,
// not at all. Its gets see what was put before them.
func (s *store) txn(r *pb.TxnRequest) (*pb.TxnResponse, error) {
	out := &pb.TxnResponse{Succeeded: true}
	for _, c := range r.Compare {
		out.Succeeded = out.Succeeded && s.holds(c)
	}
	branch := r.Success
	if !out.Succeeded {
		branch = r.Failure
	}
	for _, op := range flat(branch) {
		if put := op.GetRequestPut(); put != nil {
			if err := s.checkLease(put); err != nil {
				return nil, err
			}
		}
		if get := op.GetRequestRange(); get != nil {
			if err := s.checkRange(get); err != nil {
				return nil, err
			}
		}
	}
	t := s.begin()
	out.Responses = t.carry(branch)
	t.end()
	return out, nil
}

// carry carries out the operations of a branch in order.
func (t *txn) carry(branch []*pb.RequestOp) (out []*pb.ResponseOp) {
	for _, op := range branch {
		did := &pb.ResponseOp{}
		switch op := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			did.Response = &pb.ResponseOp_ResponseRange{ResponseRange: t.ask(op.RequestRange, t.at)}
		case *pb.RequestOp_RequestPut:
			did.Response = &pb.ResponseOp_ResponsePut{ResponsePut: t.carryPut(op.RequestPut)}
		case *pb.RequestOp_RequestDeleteRange:
			did.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: t.carryDelete(op.RequestDeleteRange)}
		case *pb.RequestOp_RequestTxn:
			nested := &pb.TxnResponse{Succeeded: true, Responses: t.carry(op.RequestTxn.Success)}
			did.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: nested}
		}
		out = append(out, did)
	}
	return out
}

// holds reports whether a compare holds for every key that it names. Where there
// is none, all numbers count as 0, and no value compares.
func (s *store) holds(c *pb.Compare) bool {
	kvs := s.find(c.Key, c.RangeEnd, s.revision)
	if len(kvs) == 0 {
		if c.Target == pb.Compare_VALUE {
			return false
		}
		kvs = []*mvccpb.KeyValue{{}}
	}
	for _, kv := range kvs {
		d := 0
		switch c.Target {
		case pb.Compare_VALUE:
			d = bytes.Compare(kv.Value, c.GetValue())
		case pb.Compare_CREATE:
			d = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
		case pb.Compare_MOD:
			d = cmp.Compare(kv.ModRevision, c.GetModRevision())
		case pb.Compare_VERSION:
			d = cmp.Compare(kv.Version, c.GetVersion())
		case pb.Compare_LEASE:
			d = cmp.Compare(kv.Lease, c.GetLease())
		}
		ok := false
		switch c.Result {
		case pb.Compare_EQUAL:
			ok = d == 0
		case pb.Compare_NOT_EQUAL:
			ok = d != 0
		case pb.Compare_GREATER:
			ok = d > 0
		case pb.Compare_LESS:
			ok = d < 0
		}
		if !ok {
			return false
		}
	}
	return true
}
