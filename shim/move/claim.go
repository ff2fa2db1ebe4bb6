// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Record is what is written down of a move while it is under way: any process can finish
// the move from it (Recover).
type Record struct {
	ID    string `json:"id"`
	Owner string `json:"owner"` // the process that carries the move out

	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Alloc     string `json:"alloc"`  // the old allocation; "": the job has waited for a node (Release)
	Source    string `json:"source"` // IDs of nodes
	Target    string `json:"target"`

	Version uint64 `json:"version"` // of the job, and its JobModifyIndex, before it was bound
	Before  uint64 `json:"before"`
	After   uint64 `json:"after"` // its JobModifyIndex as it is bound; 0: not known

	Phase Phase     `json:"phase"`
	Tasks []Task    `json:"tasks"`
	Until time.Time `json:"until"` // the claim ends then unless it is renewed; by the owner's clock

	// Index is the record's own: it is replaced and removed only as it was read.
	Index uint64 `json:"-"`
}

// Claims keeps the records, one for a job at a time.
type Claims interface {
	// Write replaces the record that has r.Index, or with 0 writes the job's first one, and
	// returns its new index. The error wraps ErrClaimed if that is not what is there.
	Write(ctx context.Context, r Record) (index uint64, err error)
	// Read returns the record of a job; its Index is 0 if there is none.
	Read(ctx context.Context, namespace, job string) (Record, error)
	// Remove removes the record that has r.Index. The error wraps ErrClaimed if it is not
	// there.
	Remove(ctx context.Context, r Record) error
	// List returns all.
	List(ctx context.Context) ([]Record, error)
}

// ErrClaimed says that another process moves the job.
var ErrClaimed = errors.New("another move of the job is under way")

// ClaimTTL is for how long a claim holds that is not renewed.
const ClaimTTL = 30 * time.Second

// Watch finds the records that nobody renews. It compares no clocks: a record counts as
// abandoned when this process has seen it unchanged for ClaimTTL.
type Watch struct{ seen map[string]sight }

type sight struct {
	index uint64
	since time.Time
}

// Abandoned are those of the records that nobody has renewed since they were seen first.
func (w *Watch) Abandoned(records []Record) []Record {
	now := time.Now()
	seen := make(map[string]sight, len(records))
	var out []Record
	for _, r := range records {
		s, ok := w.seen[r.ID]
		if !ok || s.index != r.Index {
			s = sight{r.Index, now}
		}
		seen[r.ID] = s
		if now.Sub(s.since) >= ClaimTTL {
			out = append(out, r)
		}
	}
	w.seen = seen
	return out
}

// claim is a record that this process holds.
type claim struct {
	claims  Claims
	writing chan struct{} // holds one while the record is written

	mu     sync.Mutex
	record Record
	until  time.Time // it is surely ours until then
	lost   error
}

func newClaim(claims Claims, r Record) *claim {
	return &claim{claims: claims, writing: make(chan struct{}, 1), record: r}
}

// now is the record as it was written last.
func (c *claim) now() Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record
}

// held is an error unless the claim is surely ours now.
func (c *claim) held() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.lost != nil:
		return c.lost
	case !time.Now().Before(c.until):
		return errors.New("the move's record could not be renewed in time")
	}
	return nil
}

// ends is when it is not surely ours any more.
func (c *claim) ends() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.until
}

// put changes the record and writes it. Of a write that has failed perhaps only the answer
// was lost: what is there then tells.
func (c *claim) put(ctx context.Context, change func(*Record)) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	next := c.now()
	change(&next)
	for try := 0; ; try++ {
		sent := time.Now()
		next.Until = sent.Add(ClaimTTL)
		index, err := c.claims.Write(ctx, next)
		if err == nil {
			next.Index = index
			c.mu.Lock()
			c.record = next
			c.until = sent.Add(ClaimTTL * 4 / 5)
			c.mu.Unlock()
			return nil
		}
		err = fmt.Errorf("writing the move's record: %w", err)
		there, rerr := c.claims.Read(ctx, next.Namespace, next.Job)
		switch {
		case rerr != nil || try == 3:
			return err
		case there.ID == next.ID && there.Owner == next.Owner && there.Index != next.Index:
			next.Index = there.Index // written, or to be written by a later one
		case !errors.Is(err, ErrClaimed):
			return err
		default:
			c.mu.Lock()
			c.lost = err
			c.mu.Unlock()
			return err
		}
	}
}

// keep renews the claim until ctx ends.
func (c *claim) keep(ctx context.Context) {
	every(ctx, ClaimTTL/3, func() {
		ctx, cancel := context.WithTimeout(ctx, ClaimTTL/3)
		defer cancel()
		_ = c.put(ctx, func(*Record) {}) // there is time for another try; held tells
	})
}

// drop removes the record: the move is over.
func (c *claim) drop(ctx context.Context) error {
	r := c.now()
	err := c.claims.Remove(ctx, r)
	if errors.Is(err, ErrClaimed) {
		there, rerr := c.claims.Read(ctx, r.Namespace, r.Job)
		switch {
		case rerr != nil:
			return rerr
		case there.ID != r.ID || there.Owner != r.Owner:
			return nil // removed, and only the answer was lost; or it is another's
		}
		err = c.claims.Remove(ctx, there)
	}
	if err != nil {
		return fmt.Errorf("removing the move's record: %w", err)
	}
	return nil
}
