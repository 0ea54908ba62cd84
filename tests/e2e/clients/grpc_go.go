// grpc_go ADDRESS: what grpc-go makes of the daemon with the echo model. A line `ok NAME` for each case; exit 1 if one fails.
package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const service = "/inference.GRPCInferenceService/"

// Messages are bytes that somebody else has encoded.
type raw struct{}

func (raw) Marshal(v interface{}) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v interface{}) error { *v.(*[]byte) = append([]byte(nil), data...); return nil }
func (raw) Name() string                               { return "proto" }
func (raw) String() string                             { return "proto" }

func varint(n uint64) []byte {
	var out []byte
	for n >= 128 {
		out = append(out, byte(n)|128)
		n >>= 7
	}
	return append(out, byte(n))
}

func chunk(field uint64, data []byte) []byte {
	return append(append(varint(field<<3|2), varint(uint64(len(data)))...), data...)
}

// A ModelInferRequest of `rows` rows of 1 KiB.
func request(model string, rows int) ([]byte, []byte) {
	data := make([]byte, rows*1024)
	rand.Read(data)
	shape := append(append(varint(1), varint(uint64(rows))...), varint(256)...)
	tensor := append(append(chunk(1, []byte("x")), chunk(2, []byte("FP32"))...), chunk(3, shape)...)
	return append(append(chunk(1, []byte(model)), chunk(5, tensor)...), chunk(7, data)...), data
}

var connection *grpc.ClientConn

func call(ctx context.Context, method string, in []byte, options ...grpc.CallOption) ([]byte, error) {
	var out []byte
	options = append(options, grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30))
	err := connection.Invoke(ctx, method, &in, &out, options...)
	return out, err
}

func echo(ctx context.Context, rows int, options ...grpc.CallOption) error {
	in, data := request("echo", rows)
	out, err := call(ctx, service+"ModelInfer", in, options...)
	if err == nil && !bytes.Contains(out, data) {
		err = fmt.Errorf("%d rows came back changed", rows)
	}
	return err
}

func expect(err error, code codes.Code, words string) error {
	if status.Code(err) != code || !bytes.Contains([]byte(status.Convert(err).Message()), []byte(words)) {
		return fmt.Errorf("expected %v with %q, got %v", code, words, err)
	}
	return nil
}

func sizes() error { // from 1 MiB on each answer is many frames, with PINGs that estimate bandwidth among them
	for _, rows := range []int{1, 64, 1024, 1024, 1024, 4096, 32768} {
		if err := echo(context.Background(), rows); err != nil {
			return err
		}
	}
	return nil
}

func together() error {
	var group sync.WaitGroup
	errors := make(chan error, 500)
	for i := 0; i < 500; i++ {
		group.Add(1)
		go func(rows int) {
			defer group.Done()
			if err := echo(context.Background(), rows); err != nil {
				errors <- err
			}
		}(1 + i%20)
	}
	group.Wait()
	close(errors)
	return <-errors
}

func cases() map[string]func() error {
	background := context.Background()
	return map[string]func() error{
		"empty":    func() error { _, err := call(background, service+"ServerLive", nil); return err },
		"sizes":    sizes,
		"together": together,
		"error text": func() error {
			in, _ := request("naïve % \n 模型", 1)
			_, err := call(background, service+"ModelInfer", in)
			return expect(err, codes.NotFound, "naïve % ? 模型")
		},
		"unknown method": func() error {
			_, err := call(background, service+"Nothing", nil)
			return expect(err, codes.Unimplemented, "Nothing")
		},
		"unknown service": func() error {
			_, err := call(background, "/no.Such/Method", nil)
			return expect(err, codes.Unimplemented, "no.Such")
		},
		"deadline": func() error {
			ctx, cancel := context.WithTimeout(background, time.Microsecond)
			defer cancel()
			return expect(echo(ctx, 1), codes.DeadlineExceeded, "")
		},
		"cancel": func() error {
			for i := 0; i < 200; i++ {
				ctx, cancel := context.WithCancel(background)
				go cancel()
				if err := echo(ctx, 200); err != nil && status.Code(err) != codes.Canceled {
					return err
				}
			}
			return echo(background, 1)
		},
		"metadata": func() error {
			return echo(metadata.AppendToOutgoingContext(background, "x-text", "a b", "x-bytes-bin", "\xab\x00\xff"), 1)
		},
		"short deadlines": func() error { // thousands on one connection are no attack
			for i := 0; i < 3000; i++ {
				ctx, cancel := context.WithTimeout(background, time.Duration(i%10)*100*time.Microsecond)
				err := echo(ctx, 1)
				cancel()
				if code := status.Code(err); code != codes.OK && code != codes.DeadlineExceeded {
					return err
				}
			}
			return echo(background, 1)
		},
	}
}

func main() {
	var err error
	connection, err = grpc.Dial(os.Args[1], grpc.WithInsecure())
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	failed := 0
	for name, run := range cases() {
		if err := run(); err != nil {
			fmt.Printf("FAILED %s: %v\n", name, err)
			failed = 1
		} else {
			fmt.Println("ok", name)
		}
	}
	os.Exit(failed)
}
