package status

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/text"
	"github.com/flakelease/allocator/internal/watermark"
)

// Ask asks the node at conn for its picture of the cluster. The error is a gRPC status.
func Ask(ctx context.Context, conn grpc.ClientConnInterface) (Cluster, error) {
	res, err := pb.NewAdminServiceClient(conn).GetCluster(ctx, &pb.GetClusterRequest{})
	if err != nil {
		return Cluster{}, err
	}
	return FromProto(res), nil
}

// ToProto returns c as gRPC has it.
func ToProto(c Cluster) *pb.GetClusterResponse {
	res := new(pb.GetClusterResponse)
	clusterShape.encode(reflect.ValueOf(c), res.ProtoReflect())
	return res
}

// FromProto returns what a node answered. Every text in it is printable, whatever the node
// sent, and lists are never nil.
func FromProto(res *pb.GetClusterResponse) Cluster {
	var c Cluster
	clusterShape.decode(res.ProtoReflect(), reflect.ValueOf(&c).Elem())
	return c
}

// WatermarkProto returns a as gRPC has it.
func WatermarkProto(a watermark.Answer) *pb.Watermark {
	res := new(pb.Watermark)
	watermarkShape.encode(reflect.ValueOf(a), res.ProtoReflect())
	return res
}

// WatermarkOf returns what a node answered, as FromProto does.
func WatermarkOf(res *pb.Watermark) watermark.Answer {
	var a watermark.Answer
	watermarkShape.decode(res.ProtoReflect(), reflect.ValueOf(&a).Elem())
	return a
}

// shape pairs the fields of a struct with those of a message.
//
// The contract of HTTP and that of gRPC have one set of names: a field is called in the
// proto file as it is in JSON. So no field is copied by a line of its own that could be
// forgotten. A field that only one side has is a mistake, and ends the program at its start.
type shape []pair

type pair struct {
	index int                          // The struct has the field at this index.
	field protoreflect.FieldDescriptor // The field of the message has this descriptor.
	of    shape                        // The struct in the field has this shape; nil if it is none.
}

var (
	clusterShape   = shapeOf(reflect.TypeFor[Cluster](), (*pb.GetClusterResponse)(nil).ProtoReflect().Descriptor())
	watermarkShape = shapeOf(reflect.TypeFor[watermark.Answer](), (*pb.Watermark)(nil).ProtoReflect().Descriptor())
)

func shapeOf(t reflect.Type, m protoreflect.MessageDescriptor) (s shape) {
	paired := map[protoreflect.Name]bool{}
	for i := range t.NumField() {
		tag, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		name := protoreflect.Name(tag)
		field := m.Fields().ByName(name)
		if field == nil {
			panic(fmt.Sprintf("status: %v.%s has no field %s in %s", t, t.Field(i).Name, name, m.FullName()))
		}
		paired[name] = true
		p := pair{index: i, field: field}
		if field.Message() != nil && !field.IsMap() {
			p.of = shapeOf(structOf(t.Field(i).Type), field.Message())
		}
		s = append(s, p)
	}
	for i := range m.Fields().Len() {
		if name := m.Fields().Get(i).Name(); !paired[name] {
			panic(fmt.Sprintf("status: %s.%s has no field in %v", m.FullName(), name, t))
		}
	}
	return s
}

// structOf returns the struct that t is, points to, or is a list of.
func structOf(t reflect.Type) reflect.Type {
	for t.Kind() != reflect.Struct {
		t = t.Elem()
	}
	return t
}

func (s shape) encode(v reflect.Value, m protoreflect.Message) {
	for _, p := range s {
		from := v.Field(p.index)
		switch {
		case from.IsZero():
		case p.field.IsMap():
			for key, count := range from.Seq2() {
				name := protoreflect.ValueOfString(key.String()).MapKey()
				m.Mutable(p.field).Map().Set(name, protoreflect.ValueOfInt64(count.Int()))
			}
		case p.field.IsList():
			list := m.Mutable(p.field).List()
			for _, one := range from.Seq2() {
				if p.of != nil {
					p.of.encode(one, list.AppendMutable().Message())
				} else {
					list.Append(toScalar(p.field, one))
				}
			}
		case p.of != nil:
			p.of.encode(reflect.Indirect(from), m.Mutable(p.field).Message())
		default:
			m.Set(p.field, toScalar(p.field, from))
		}
	}
}

func (s shape) decode(m protoreflect.Message, v reflect.Value) {
	for _, p := range s {
		to := v.Field(p.index)
		from := m.Get(p.field)
		switch {
		case p.field.IsMap():
			to.Set(reflect.MakeMap(to.Type()))
			from.Map().Range(func(key protoreflect.MapKey, count protoreflect.Value) bool {
				to.SetMapIndex(reflect.ValueOf(text.Printable(key.String())), reflect.ValueOf(count.Int()))
				return true
			})
		case p.field.IsList():
			list := from.List()
			to.Set(reflect.MakeSlice(to.Type(), list.Len(), list.Len()))
			for i := range list.Len() {
				if p.of != nil {
					p.of.decode(list.Get(i).Message(), to.Index(i))
				} else {
					fromScalar(p.field, list.Get(i), to.Index(i))
				}
			}
		case p.of == nil:
			fromScalar(p.field, from, to)
		case to.Kind() == reflect.Struct:
			p.of.decode(from.Message(), to)
		case m.Has(p.field):
			to.Set(reflect.New(to.Type().Elem()))
			p.of.decode(from.Message(), to.Elem())
		}
	}
}

// toScalar returns a value that is no message. The only enum is Reason, with its numbers.
func toScalar(field protoreflect.FieldDescriptor, v reflect.Value) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(v.Bool())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(v.Int()))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(v.Int())
	case protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(v.Uint())
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(v.Int()))
	}
	return protoreflect.ValueOfString(v.String())
}

func fromScalar(field protoreflect.FieldDescriptor, from protoreflect.Value, to reflect.Value) {
	switch field.Kind() {
	case protoreflect.BoolKind:
		to.SetBool(from.Bool())
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		to.SetInt(from.Int())
	case protoreflect.Fixed64Kind:
		to.SetUint(from.Uint())
	case protoreflect.EnumKind:
		to.SetInt(int64(from.Enum()))
	default:
		to.SetString(text.Printable(from.String()))
	}
}
