package etcdsim

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

type watches struct {
	pb.UnimplementedWatchServer
	s *Server
}

type watchStream = grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]

// watcher is the watches of one stream. Only its goroutine uses it and
// sends.
type watcher struct {
	s      *Server
	stream watchStream
	next   int64 // ID of the next watch
	order  []int64
	open   map[int64]*watch
}

type watch struct {
	key, end []byte
	from     int64 // the first revision not yet sent
	prev     bool  // send the previous value
	noPut    bool
	noDelete bool
}

// progress is the watch that an answer to a progress request is for: all.
const progress = -1

func (w watches) Watch(stream watchStream) error {
	ctx := stream.Context()
	requests, ended := make(chan *pb.WatchRequest), make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	needs := false
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		got := md.Get(rpctypes.MetadataRequireLeaderKey)
		needs = len(got) > 0 && got[0] == rpctypes.MetadataHasLeader
	}
	own := &watcher{s: w.s, stream: stream, open: map[int64]*watch{}}
	for {
		w.s.mu.Lock()
		changed, leader := w.s.changed, w.s.leader
		w.s.mu.Unlock()
		if needs && !leader {
			return rpctypes.ErrGRPCNoLeader
		}
		if err := own.flush(); err != nil {
			return err
		}
		select {
		case <-changed:
		case r := <-requests:
			if err := own.take(r); err != nil {
				return err
			}
		case <-ended: // the client ended the stream
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *watcher) take(r *pb.WatchRequest) error {
	switch r := r.RequestUnion.(type) {
	case *pb.WatchRequest_CreateRequest:
		_, err := w.s.serve(w.stream.Context(), pb.Watch_Watch_FullMethodName, true,
			func() (any, error) { return nil, nil })
		if err != nil {
			return err
		}
		return w.create(r.CreateRequest)
	case *pb.WatchRequest_CancelRequest:
		id := r.CancelRequest.WatchId
		if w.open[id] == nil {
			return nil
		}
		delete(w.open, id)
		return w.send(&pb.WatchResponse{WatchId: id, Canceled: true})
	case *pb.WatchRequest_ProgressRequest:
		if err := w.flush(); err != nil {
			return err
		}
		w.s.mu.Lock()
		header := w.s.header()
		w.s.mu.Unlock()
		for _, own := range w.open { // not what was written since
			header.Revision = min(header.Revision, own.from-1)
		}
		return w.stream.Send(&pb.WatchResponse{Header: header, WatchId: progress})
	}
	return errMissing
}

func (w *watcher) create(r *pb.WatchCreateRequest) error {
	if r.WatchId != 0 || r.Fragment {
		return errMissing
	}
	key := r.Key
	if len(key) == 0 {
		key = []byte{0}
	}
	own := &watch{key: key, end: r.RangeEnd, from: r.StartRevision, prev: r.PrevKv}
	for _, f := range r.Filters {
		own.noPut = own.noPut || f == pb.WatchCreateRequest_NOPUT
		own.noDelete = own.noDelete || f == pb.WatchCreateRequest_NODELETE
	}
	w.s.mu.Lock()
	if own.from == 0 {
		own.from = w.s.store.revision + 1
	}
	w.s.mu.Unlock()
	id := w.next
	w.next++
	w.open[id] = own
	w.order = append(w.order, id)
	return w.send(&pb.WatchResponse{WatchId: id, Created: true})
}

func (w *watcher) send(r *pb.WatchResponse) error {
	w.s.mu.Lock()
	r.Header = w.s.header()
	w.s.mu.Unlock()
	return w.stream.Send(r)
}

// flush sends what the watches have not seen yet.
func (w *watcher) flush() error {
	for _, id := range w.order {
		own := w.open[id]
		if own == nil {
			continue
		}
		w.s.mu.Lock()
		now, compacted := w.s.store.revision, w.s.store.compacted
		events := w.s.store.since(own.key, own.end, own.from)
		header := w.s.header()
		w.s.mu.Unlock()
		if own.from < compacted {
			delete(w.open, id)
			err := w.stream.Send(&pb.WatchResponse{
				Header:          header,
				WatchId:         id,
				Canceled:        true,
				CompactRevision: compacted,
				CancelReason:    rpctypes.ErrGRPCCompacted.Error(),
			})
			if err != nil {
				return err
			}
			continue
		}
		if own.from <= now {
			own.from = now + 1
		}
		var out []*mvccpb.Event
		for _, ev := range events {
			if ev.Type == mvccpb.Event_PUT && own.noPut || ev.Type == mvccpb.Event_DELETE && own.noDelete {
				continue
			}
			sent := &mvccpb.Event{Type: ev.Type, Kv: copyOf(ev.Kv)}
			if own.prev && ev.PrevKv != nil {
				sent.PrevKv = copyOf(ev.PrevKv)
			}
			out = append(out, sent)
		}
		if len(out) > 0 {
			if err := w.stream.Send(&pb.WatchResponse{Header: header, WatchId: id, Events: out}); err != nil {
				return err
			}
		}
	}
	return nil
}
