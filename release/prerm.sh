#!/bin/sh
# Stops the relay before its files are removed, but not for an upgrade. dpkg says "remove", rpm 0.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl --no-reload disable --now relay.service
	fi
	;;
esac
