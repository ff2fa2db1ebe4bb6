#!/bin/sh
# Runs after removal of the package. Debian passes "purge" to remove its configuration, too.
set -e

case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl daemon-reload || true
	fi
	;;
purge)
	# Remove the file of `ebbtide setup` if it is unchanged: the first line has a checksum of
	# the lines after the second.
	file=/etc/nomad.d/ebbtide.hcl
	if [ -f "$file" ] && head -n 1 "$file" | grep -q '^# Written by "ebbtide setup"'; then
		sum=$(tail -n +3 "$file" | sha256sum | cut -c 1-12)
		if head -n 1 "$file" | grep -q "($sum)"; then
			rm -f "$file"
		else
			echo "$file was changed since ebbtide setup wrote it, and stays"
		fi
	fi
	;;
esac
