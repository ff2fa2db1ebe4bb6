// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package remaining estimates the CPU-seconds that a training task still needs: until
// its end, or its objective if the fitted curve reaches that first, and until its model
// is good enough. It is deterministic, reads no clock and keeps bounded memory. Each
// task has one Estimator, used by one goroutine.
//
// # The total
//
// The first of these that exists and that the task has not passed counts:
//
//  1. meta: declared by the job, in steps or epochs;
//  2. steps, epochs: printed by the trainer;
//  3. assumed: options of the command line or environment whose names mean a number
//     of steps or epochs;
//  4. earlier: an earlier run of the same job with the same arguments on this node, or
//     on another one, as passed on by the shim. If it was shorter than the trainer
//     prints, it counts before that.
//
// Epochs count once the steps per epoch are known. If only epochs are reported, an
// assumed number of steps does not count. A task without any step is measured by the
// CPU-seconds of the earlier run.
//
// # The price of a step
//
// CPU-seconds per step are measured from the first report of an epoch to that of a
// later one, which includes validation and checkpoints; if there are fewer than ten
// reports per epoch, from the end of an epoch to that of a later one, interpolated
// between two reports; without complete epochs, between reports. Always over the newer
// half of the steps, since starts are slow. A single epoch whose steps cost more than
// twice the newest ones had a slow start and is ignored. Time before the first report
// (imports, loading) never counts. Until there are two reports, the price before a
// restart counts, then the earlier run's.
//
// Between two reports the remaining work falls with the CPU-seconds used, but not below
// that at the next report: a late report does not shorten a task.
//
// # Trainers' behaviour
//
//   - A step or CPU counter that decreases is a restart. The remaining work follows the new
//     step; the price of a step is kept until measured again. A CPU reading less than a
//     tenth lower is jitter.
//   - A step that decreases three times without passing its previous peak is no position
//     (it counts per epoch, or the task crashes at the same place): the remaining work is
//     unknown until it passes the peak.
//   - A step that falls in four consecutive reports counts down: it is the remaining work.
//   - A total that changes while the step advances is adopted. One that changes with
//     most reports is ignored ("step 7 of 7").
//   - A report with another total and a lower step belongs to another bar. It is ignored
//     until ours is complete, or the other has used as much CPU as ours. After three
//     consecutive complete bars no bar counts as the whole job.
//   - Reports read at once share one CPU reading, that of the last one.
//   - Totals that are zero, negative or not finite are ignored, as are steps that are
//     negative or not finite.
//   - A step beyond the total, by more than the distance of two reports, disproves it.
//
// # Step reports
//
// Without a metric nothing tells whether a count is the training's: there are bars of
// downloads, of validation, of one epoch. Bars are told apart by their names and totals,
// and one that has moved is followed: the one that lasts without beginning anew, the
// first of several, else the one that covers the most CPU time. A bar may change its
// words while it goes on, and its total if that follows from per cents.
//
//   - The size is unknown, or that of the earlier run in CPU-seconds, until the bar has
//     covered half of the CPU time and a tenth of its steps. If meta, an option or the
//     earlier run names the same total, the tenth does not matter. If it names another
//     one, or a bar that began before is open, the steps may be those of one epoch, and
//     the size stays unknown.
//   - A bar that ends and begins anew is an epoch. Steps are counted on, and the number of
//     epochs, or of all steps, is that of meta, an option or the earlier run.
//   - A count whose first report, of step 1, comes before the time that a step takes is one
//     of headers: the step has just begun.
//   - The size is withdrawn if the bar begins anew, exceeds its total or ends before the
//     task, or if the size doubles. It is trusted again by new evidence, at most twice.
//   - Reports of a metric that have a step count instead, until they are missing for
//     half of the CPU time, unless they tell no total and the bar does.
package remaining
