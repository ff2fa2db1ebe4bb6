// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package progress reads a training job's progress from its output.
//
// Logs follows Nomad's rotated log files in bounded memory, Reader a plain stream; both
// pass lines to a Parser, which returns Reports: a metric's value with step and total
// if known. Start with parser.go.
//
// # Lines
//
// A line ends at \n, \r, or eight or more backspaces (with which Keras rewinds its
// bar). Clean removes escape sequences and applies other backspaces. Of a line above 64
// KiB the first 64 KiB are parsed, and without a report there the last 4 KiB. An
// unfinished line is parsed after three seconds without growth, except its last word: a
// block-buffered trainer stops in the middle of a number.
//
// Launchers put the rank of a process in front of every line: "3: …", "[1,3]<stdout>:…",
// "[rank3]: …". Such a label is removed, and one rank is followed, the lowest that
// reports. A number alone, "3: …" or "[3] …", may also be the step: it is a rank if it
// falls, stays the same, or stands before another step, and the step if it rises for
// long or evenly. Until then the step is unknown.
//
// # Grammar
//
// A line is cut into tokens: words, numbers, drawn bars and signs (tokens.go). Rules over
// tokens find candidates: values of metrics, steps, epochs, positions and totals
// (scan.go; dict.go and table.go for other layouts). Which candidate is the metric
// follows from its name and its course (goal.go, parser.go), which number is the step
// from its course over the lines (steps.go).
//
// # Metric
//
// Without a configured name the parser prefers, in this order: a training loss, one of
// its terms (box_loss), a validation loss, another falling measure (perplexity, wer,
// rmse), a rising training measure (accuracy, reward), a rising validation measure;
// last best_…, which is flat between improvements, and losses of reinforcement
// learning, which follow no goal, start at 0, are negative or do not fall. The training
// loss is printed most often, and growth needs many points. The parser keeps one metric in one kind of line. It changes only
// to a better one that recurs, or if the current one is missing from many lines that
// have another. Report.Metric names it, so that consumers never mix curves.
//
// Names stand before values ("val loss: 0.5", "loss val 0.5"), behind them in a list
// ("10.5 loss, 0.1 LR"), above them in a table with a column of steps or epochs, or next
// to them in a box, which is reported when closed, or in a dict ({"name": "loss",
// "value": 0.5}). A table of trials is reported when it ends with one trial alone. A
// value after "best" is a running optimum and no report.
//
// # Steps
//
// A printed step is used as it is, unless it restarts with every epoch. From an epoch
// and a position in it, the step is (epoch − first epoch)·batches + batch, the total
// epochs·batches; epochs count from 1 unless an epoch 0 was seen. A full bar that
// restarts continues the count. An epoch alone is the step. Hugging Face's lines have
// no step; it is taken from the progress bar between them. A line such as
// "[step=10/600]" or "──── Step 10 ────" sets the step of the lines below; so does any
// line with a step alone, if each report has a new one before it. A bar is the total of
// printed steps if its position was the step twice. A step that decreases means that the trainer was restarted, or that another training follows (the
// next fold, a first epoch after a full last one): of those, totals and steps are
// unknown. A step and its total always count the same; without the number of epochs,
// the length of one is no total.
//
// While no metric with steps and a total is known, every bar and counter gives step
// reports (bars.go), except those that are certainly none of the training; package
// remaining finds the one that is.
package progress
