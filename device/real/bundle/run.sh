#!/bin/sh
# Copyright (c) Ebbtide authors
# SPDX-License-Identifier: MPL-2.0

# Runs Ebbtide's tests on this machine's first NVIDIA card, within 8 minutes, and writes
# report.json, report.txt and report.log next to this file, or to -out DIR. It needs NVIDIA's driver,
# 9 GiB free on the card, and root for parking; a card without other users shows most.
#
#	./run.sh            exit status 0: all passed; 1: a test failed; 2: no test can run here; 3: no report
#	./run.sh -fake      the same on the fake card, which is in here: does the bundle itself work?
#	./run.sh -h         all options
case $0 in
*/*) dir=${0%/*} ;;
*) dir=. ;;
esac
exec "$dir/ebbtide-gpu-tests" "$@"
