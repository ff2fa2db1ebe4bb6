// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package progress reads how far a training job has come from what it prints.
//
// Three parts, each usable alone:
//
//   - Logs follows the files that Nomad's log collector rotates in an allocation's
//     log directory, through rotation, deletion and truncation, in bounded memory.
//   - Reader does the same for a plain stream.
//   - Parser turns one line into a Report: a value of the metric, and the step and
//     the total number of steps when the line, or the lines before it, tell.
//
// # Lines
//
// A line ends at \n, at \r and at eight or more backspaces in a row (how Keras
// rewinds its bar). Clean then removes escape sequences and applies the remaining
// backspaces, so that text which a terminal would have shown one after the other is
// looked at one after the other. A line of more than 64 KiB is parsed by its first
// 64 KiB or, if those hold no report, by its last 4 KiB. What is not ended yet is
// held back until it is, or until nothing was added for three seconds; in the latter
// case the last word is not trusted, since a block-buffered trainer stops in the
// middle of a number.
//
// # Which metric
//
// Without a configured name the parser prefers, in this order: a training loss,
// one term of it (box_loss), a validation loss, another measure that falls
// (perplexity, wer, rmse), a training measure that rises (accuracy, reward), one
// that is computed on validation data; last of all best_…, which is flat between
// improvements, and the losses of reinforcement learning, which follow no goal. The training loss comes first because it is
// printed most often and growth needs many points. It keeps to one metric in one
// kind of line, and changes only for a better one that keeps coming, or when its own
// stays away for many lines that hold another. Report.Metric tells, so that a
// consumer never mixes two curves.
//
// Names stand before values ("val loss: 0.5", "loss val 0.5"), above them in a table
// whose header has a column that counts, or beside them in a box, which reports when
// it is closed. What "best" stands before is a running optimum and no report.
//
// # Steps
//
// A step that is printed is used as it is, unless it starts again with every epoch.
// Where only an epoch and a position within it are known, the step is
// (epoch − first epoch)·batches + batch and the total epochs·batches; epochs count
// from 1 unless an epoch 0 was seen. A bar that starts again after it was full
// counts on. With an epoch alone, the epoch is the step. Hugging Face's lines carry
// no step: it comes from the progress bar between them. A line such as "[step=10/600]"
// tells the step of the lines below it. A step that goes back means that the training
// was restarted.
package progress
