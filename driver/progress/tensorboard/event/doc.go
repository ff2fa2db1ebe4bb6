// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package event reads and writes what TensorBoard's event files are made of, as far
// as scalars go.
//
// A file is a sequence of records (AppendRecord, ReadRecord): the length of the data
// in eight bytes, little endian; a checksum of these eight; the data; a checksum of
// the data. The checksum is CRC-32C, rotated and shifted so that a checksum of data
// that holds checksums is none. This is TFRecord, as tensorflow/core/lib/io/
// record_writer.h describes it.
//
// Each record is an Event, a protocol buffer (tensorflow/core/util/event.proto,
// framework/summary.proto, framework/tensor.proto). The first of a file says
// file_version "brain.Event:2". A scalar is a Summary.Value, in one of two encodings:
// simple_value (TensorFlow 1, PyTorch, and what most others write) or a tensor of one
// number (TensorFlow 2). A tensor's number stands in the field of its type
// (float_val, …) or as bytes in tensor_content.
//
// The messages are read field by field, without generated code: what is not needed,
// and what later versions may add, is passed over.
package event
