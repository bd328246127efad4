package main

import (
	"context"
	"net"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A names is a DNS server for the names of Services, in place of the cluster's:
//
//	SERVICE.NAMESPACE.svc.cluster.local       its address or, headless, those of its ready pods
//	POD.SERVICE.NAMESPACE.svc.cluster.local   a pod of a headless Service, by its hostname
//
// It asks the API each time. It serves UDP and IPv4; answers live for one second.
type names struct {
	kube kubernetes.Interface
	conn net.PacketConn
}

// serve answers until the connection is closed.
func (n *names) serve() {
	buf := make([]byte, 4096)
	for {
		k, from, err := n.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer := n.answer(buf[:k]); answer != nil {
			_, _ = n.conn.WriteTo(answer, from)
		}
	}
}

// answer returns nil if the packet is not a question.
func (n *names) answer(query []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	ips, known, err := n.lookup(ctx, strings.ToLower(q.Name.String()))
	m := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID:                 head.ID,
			Response:           true,
			Authoritative:      true,
			RecursionDesired:   head.RecursionDesired,
			RecursionAvailable: true,
		},
		Questions: []dnsmessage.Question{q},
	}
	switch {
	case err != nil:
		m.RCode = dnsmessage.RCodeServerFailure
	case !known:
		m.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		for _, ip := range ips {
			a := dnsmessage.AResource{}
			copy(a.A[:], net.ParseIP(ip).To4())
			m.Answers = append(m.Answers,
				dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, Body: &a})
		}
	}
	out, err := m.Pack()
	if err != nil {
		return nil
	}
	return out
}

// lookup returns the addresses of a name, and whether there is such a name.
func (n *names) lookup(ctx context.Context, name string) ([]string, bool, error) {
	rest, ok := strings.CutSuffix(name, ".svc.cluster.local.")
	if !ok {
		return nil, false, nil
	}
	part := strings.Split(rest, ".")
	if len(part) != 2 && len(part) != 3 {
		return nil, false, nil
	}
	namespace, service := part[len(part)-1], part[len(part)-2]
	list, err := n.kube.CoreV1().Services(namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + service})
	if err != nil || len(list.Items) == 0 {
		return nil, false, err
	}
	s := list.Items[0]
	if s.Spec.ClusterIP != "None" {
		return []string{s.Spec.ClusterIP}, len(part) == 2, nil
	}
	slices, err := n.kube.DiscoveryV1().EndpointSlices(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		return nil, false, err
	}
	var ips []string
	for _, slice := range slices.Items {
		for _, e := range slice.Endpoints {
			// Where a Service publishes all addresses, every one counts as ready.
			if e.Conditions.Ready == nil || !*e.Conditions.Ready {
				continue
			}
			if len(part) == 2 || e.Hostname != nil && *e.Hostname == part[0] {
				ips = append(ips, e.Addresses...)
			}
		}
	}
	return ips, len(part) == 2 || len(ips) > 0, nil
}
