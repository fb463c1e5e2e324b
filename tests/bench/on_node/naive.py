"""A naive subscriber: dbus-next's proxies, every signal of systemd, and the whole list read
again."""

import asyncio

from dbus_next import BusType
from dbus_next.aio import MessageBus

SYSTEMD = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
WATCHED = ("nvidia-persistenced.service", "containerd.service", "kubelet.service")


async def main():
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    manager = bus.get_proxy_object(
        SYSTEMD, PATH, await bus.introspect(SYSTEMD, PATH)
    ).get_interface(f"{SYSTEMD}.Manager")
    units, reads = {}, []

    def reloading(active):
        if not active:
            reads.append(asyncio.ensure_future(read()))

    async def read():
        for unit in await manager.call_list_units():
            units[unit[0]] = unit[3]

    def ignore(interface, changed, invalidated):
        pass

    manager.on_reloading(reloading)
    manager.on_unit_new(lambda name, path: units.__setitem__(name, "?"))
    manager.on_unit_removed(lambda name, path: units.pop(name, None))
    for name in WATCHED:
        path = await manager.call_get_unit(name)
        proxy = bus.get_proxy_object(SYSTEMD, path, await bus.introspect(SYSTEMD, path))
        proxy.get_interface("org.freedesktop.DBus.Properties").on_properties_changed(ignore)
    await manager.call_subscribe()
    await read()
    await asyncio.get_running_loop().create_future()


asyncio.run(main())
