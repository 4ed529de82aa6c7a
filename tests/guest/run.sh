#!/bin/sh
# Run a command in a small virtual machine that has control groups of version 2 only.
#
#   run.sh [--user] COMMAND        e.g.  run.sh 'cd /src && python3 -m pytest tests/sandbox'
#
# The machine sees this one's files, read-only, under a layer in memory; what it writes is gone
# afterwards. COMMAND goes to sh as root or, with --user, as the user `guest`, who has a range of
# subordinate ids and a control group of its own. Its exit status is the script's.
#
# It needs qemu-system-x86, busybox-static, xz-utils and, for --user, uidmap; the kernel is
# the package KERNEL (default: this Debian's), fetched once and not installed. No KVM is used: the
# machine's clock counts instructions, so nothing is out of time there because emulation is slow.
set -eu

kernel=${KERNEL:-linux-image-amd64}
memory=${MEMORY:-3G}
limit=${LIMIT:-3600}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/headrace-guest
modules='kernel/drivers/virtio kernel/fs/9p kernel/fs/fscache kernel/fs/netfs kernel/fs/overlayfs
         kernel/net/9p'

user=
if [ "${1-}" = --user ]; then user=guest; shift; fi
[ $# = 1 ] || { sed -n '4p' "$0" >&2; exit 2; }

# --- the kernel, and an initramfs with the few modules that reach the host's files -------------

fetch() {
  package=$(apt-cache depends "$kernel" | sed -n 's/.*Depends: \(linux-image-[^ ]*\).*/\1/p' | head -n 1)
  rm -rf "$home.new"
  mkdir -p "$home.new/deb" "$home.new/root/bin"
  (cd "$home.new/deb" && apt-get -qq download "${package:-$kernel}" 2> /dev/null && dpkg-deb -x ./*.deb . && rm ./*.deb)
  version=$(basename "$home.new"/deb/boot/vmlinuz-* | sed s/vmlinuz-//)
  cp "$home.new/deb/boot/vmlinuz-$version" "$home.new/vmlinuz"
  to=$home.new/root/lib/modules/$version
  mkdir -p "$to"
  for name in modules.builtin modules.order; do
    cp "$home.new/deb/lib/modules/$version/$name" "$to"
  done
  for name in $modules; do
    from=$home.new/deb/lib/modules/$version/$name
    [ ! -d "$from" ] || { mkdir -p "$to/$name" && cp "$from"/*.ko* "$to/$name"; }
  done
  find "$to" -name '*.xz' -exec xz -d {} +
  cp "$(command -v busybox)" "$home.new/root/bin/busybox"
  ln -s busybox "$home.new/root/bin/sh"
  busybox depmod -b "$home.new/root" "$version"
  rm -r "$home.new/deb"
  mv "$home.new" "$home"
}

home=$cache/$kernel
[ -d "$home" ] || fetch

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$home/root/." "$work/root"

# --- what the machine does ---------------------------------------------------------------------

cat > "$work/root/init" <<'END'
#!/bin/sh
export PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /host /layer /new
mount -t proc proc /proc
for name in virtio_pci 9pnet_virtio 9p overlay; do modprobe "$name"; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host
mount -t tmpfs -o size=75% layer /layer
mkdir /layer/u /layer/w
mount -t overlay -o lowerdir=/host,upperdir=/layer/u,workdir=/layer/w root /new
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts -o ptmxmode=666 pts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t tmpfs -o mode=755 run /new/run
mount -t cgroup2 -o nsdelegate cgroup /new/sys/fs/cgroup
mkdir /new/run/guest
cp /start /command /user /new/run/guest/
umount /proc
exec switch_root /new /bin/sh /run/guest/start
END

cat > "$work/root/start" <<'END'
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb
stty -onlcr
ip link set lo up 2>/dev/null || busybox ip link set lo up
top=/sys/fs/cgroup
echo '+cpu +memory +pids' > $top/cgroup.subtree_control
mkdir -p $top/guest/shell
user=$(cat /run/guest/user)
run='sh /run/guest/command'
if [ -n "$user" ]; then
  echo "$user:x:4242:4242::/home/$user:/bin/sh" >> /etc/passwd
  echo "$user:x:4242:" >> /etc/group
  echo "$user:100000:65536" | tee /etc/subuid > /etc/subgid
  mkdir -p /home/$user /run/user/4242
  chmod 755 /root
  chmod 700 /run/user/4242
  chown 4242:4242 /home/$user /run/user/4242 $top/guest $top/guest/shell
  for name in cgroup.procs cgroup.subtree_control cgroup.threads; do
    chown 4242:4242 $top/guest/$name $top/guest/shell/$name
  done
  export HOME=/home/$user USER=$user LOGNAME=$user XDG_RUNTIME_DIR=/run/user/4242
  run="setpriv --reuid 4242 --regid 4242 --clear-groups sh /run/guest/command"
fi
cd /
sh -c "echo \$\$ > $top/guest/shell/cgroup.procs; exec setsid $run" < /dev/null
echo $? > /dev/ttyS1
busybox poweroff -f
END

echo "$user" > "$work/root/user"
printf '%s\n' "$1" > "$work/root/command"
chmod 755 "$work/root/init"
(cd "$work/root" && find . | busybox cpio -o -H newc 2>/dev/null) > "$work/initramfs"

# --- the machine -------------------------------------------------------------------------------

timeout --foreground "$limit" nice -n 19 qemu-system-x86_64 -nodefaults -no-user-config -no-reboot \
  -display none -accel tcg -icount shift=0 -rtc clock=vm -cpu max -m "$memory" \
  -kernel "$home/vmlinuz" -initrd "$work/initramfs" \
  -append 'console=ttyS0 quiet loglevel=4 panic=-1 cgroup_no_v1=all' \
  -serial stdio -serial "file:$work/status" \
  -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap < /dev/null

status=$(tr -dc 0-9 < "$work/status")
[ -n "$status" ] || { echo 'the machine ended without a result' >&2; exit 125; }
exit "$status"
