#!/bin/sh
# After the package is removed. Debian gives "purge" when its configuration is to go as well.
set -e

case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl daemon-reload || true
	fi
	;;
purge)
	# What `ebbtide setup` has written, and nothing that somebody else has.
	file=/etc/nomad.d/ebbtide.hcl
	if [ -f "$file" ] && head -n 1 "$file" | grep -q '^# Written by "ebbtide setup"'; then
		rm -f "$file"
	fi
	;;
esac
