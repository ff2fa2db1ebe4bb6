// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package event reads and writes the scalars of TensorBoard event files.
//
// A file is a sequence of records (AppendRecord, ReadRecord): the length of the data in
// eight bytes, little endian; a checksum of these; the data; a checksum of the data.
// The checksum is CRC-32C, masked. This is TFRecord, described in
// tensorflow/core/lib/io/record_writer.h.
//
// Each record is an Event, a protocol buffer (tensorflow/core/util/event.proto,
// framework/summary.proto, framework/tensor.proto). A file's first one has file_version
// "brain.Event:2". A scalar is a Summary.Value: simple_value (TensorFlow 1, PyTorch and
// most others) or a tensor of one number (TensorFlow 2), in the field of its type
// (float_val, …) or as bytes in tensor_content.
//
// Messages are read field by field, without generated code; unknown fields are skipped.
package event
