// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package tensorboard reads the progress of a training job from the event files that
// it writes for TensorBoard.
//
// Below a directory, event files are those that have "tfevents" in their names, as for
// TensorBoard itself: at most 8 levels down, the newest 1,000 of them. Symbolic links
// below the directory are not followed. Package event says what is in a file.
//
// # Runs
//
// A run is a directory with event files. Where its last element begins or ends with a
// word such as train, validation or eval (train, eval_heldout, Loss_validation), the
// run is the directory above: Keras, estimators and PyTorch's add_scalars divide one
// training so. One run is followed: at first the one whose files have changed last.
// Another one takes over
//
//   - when a new file comes up in it, and holds a metric: a restart that writes to a
//     directory of its own, or resumes in an older one; or
//   - when it has grown three times while ours did not.
//
// So an attempt to write two at once does not make the curves mix, and a directory
// that holds something else, as add_hparams makes it, changes nothing. In the run all
// files are followed, in the order of their names, which begin with the time.
//
// # Which metric
//
// Each scalar is given to a progress.Parser as a line of JSON with its tag as the
// name, so that the choice is that of logs: the configured metric, whole and in any
// case, or else a training loss first. A tag of held-out data from a directory of its
// own has that in front, as TensorBoard shows it: validation/epoch_loss. One from
// train/ has not, but is found under that name as well. Tags that begin with hparam/
// are taken only when they are asked for.
//
// The step is the event's own, also when it goes back. Writers keep events back for a
// while (PyTorch for up to 120 seconds, flush_secs): reports then come many at once.
//
// # Damage
//
// A record that is not complete at the end of a file is waited for. One with a wrong
// checksum, or one that says it has more than 16 MiB, ends the reading of its file,
// since nothing tells where the next one begins: an error names file and position,
// once, and other files go on. A record of more than 1 MiB is checked and passed over:
// it is a graph or a picture.
package tensorboard
