// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package remaining tells how many CPU-seconds a training task still needs: until its
// end, or its objective if the fitted curve gets there first, and until its model is
// good enough. It is pure, deterministic and keeps bounded memory; one Estimator follows
// one task and is used by one goroutine.
//
// # The total
//
// The first of these that there is, and that the task has not gone beyond, counts:
//
//  1. meta: what the job declares, in steps or in epochs;
//  2. steps, epochs: what the trainer prints;
//  3. assumed: options of the task's command line or environment that mean a number of
//     steps or epochs by their name;
//  4. earlier: what an earlier run of the same job with the same arguments took
//     on this node, or on another one as the shim tells.
//
// A number of epochs counts once the steps of an epoch are known. Where only epochs are
// reported, an assumed number of steps does not count. A task that reports
// no step at all is measured by the CPU-seconds of the earlier run.
//
// # The price of a step
//
// CPU-seconds per step are measured from the first report of an epoch to the first
// report of a later one, so that validation and checkpoints are in them; where reports are
// rarer than ten an epoch, from the end of an epoch to that of a later one, reckoned
// between two reports; where the epochs are not known, or none is complete, between
// reports. In all cases over the newer half of the steps done: a start is slower than what
// follows. An only epoch whose steps cost more than twice what the newest ones do had a
// slow start, and is left out. What comes before the first report (imports, loading) is in
// none of them. Until two reports have come, what was measured before a restart counts,
// then what the earlier run took per step.
//
// Between two reports what is left falls with the CPU-seconds used, but not below what
// is left at the next report: a report that is late does not make a task shorter.
//
// # What trainers do
//
//   - A step or a CPU counter that goes back is a restart. What is left follows the new
//     step; the price of a step is carried over until it is measured anew. A CPU reading
//     that is less than a tenth lower is jitter.
//   - A step that goes back three times without getting beyond where it was before is no
//     position (it counts anew with every epoch, or the task dies at the same place every
//     time): nothing is known until it gets beyond.
//   - A step that falls with four reports in a row counts down: it is what is left.
//   - A total that changes while the step goes on is taken over. One that changes with
//     most reports is none ("step 7 of 7").
//   - A report with another total and a lower step is of another bar. It is ignored until
//     ours is complete, or the other has taken as much CPU as ours had. After three bars
//     that were completed one after the other none is taken for the whole job; the first
//     one is.
//   - Reports that are read in one go have one CPU reading, which is that of the last one.
//   - A total of 0, a negative or not finite one is none; a step that is negative or not
//     finite is left out.
//   - A step beyond the total, by more than lies between two reports, disproves the total.
//
// No clock is read, so none can jump.
package remaining
