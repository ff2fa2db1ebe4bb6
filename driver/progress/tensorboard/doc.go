// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package tensorboard reads a training job's progress from its TensorBoard event files.
//
// Event files are files with "tfevents" in their names below a directory, at most 8 levels deep,
// the newest 1,000. Symbolic links are not followed. Package event decodes them.
//
// # Runs
//
// A run is a directory with event files. If its last element begins or ends with a word such as
// train, validation or eval (train, eval_heldout, Loss_validation), the run is its parent: Keras,
// estimators and PyTorch's add_scalars split a training run this way. One run is read, initially the
// one changed last. Another one takes over
//
//   - when a new file with a metric appears in it, after a restart; or
//   - when it has grown three times while the current one has not.
//
// So curves of concurrent runs are not mixed, and directories such as add_hparams' have no effect.
// All files of the run are read in the order of their names, which begin with the time.
//
// # Metric
//
// Each scalar goes to a progress.Parser as a line of JSON with its tag as name, so the metric is
// selected as in logs: the configured one, the whole name in any case, or a training loss first. A
// tag from a directory of held-out data is prefixed with it, as in TensorBoard:
// validation/epoch_loss. Tags from train/ match with and without prefix, hparam/ tags only if
// configured.
//
// The step is the event's own, even if it decreases. Writers buffer events (PyTorch for up to 120
// seconds, flush_secs), so reports come in bursts.
//
// # Damage
//
// An incomplete record at a file's end is retried. A wrong checksum, or a length above 16 MiB, ends
// the reading of the file, as the next record cannot be located: an error reports file and position
// once. Records above 1 MiB, graphs or images, are verified and skipped.
package tensorboard
