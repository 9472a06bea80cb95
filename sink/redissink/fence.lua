-- Fences a group_id: a former owner of the batch can no longer add its events.
--
-- KEYS  1    this group_id's marker at an address
--       2..  the markers of its origins
-- ARGV  1    the time to live of a marker, in milliseconds
--       2    "sent TEMPLATE" or the names of the events, see markers.lua
--
-- Returns {"known"} if the events are present, otherwise {"void"}. Either way it writes,
-- because WAIT waits only for a connection that wrote (Redis 7.2 and later).

local markers = call('MGET', unpack(KEYS))
local all = compare(markers, ARGV[2])
for i = 1, #KEYS do
  local value = markers[i]
  if not all then
    value = void(value)
  end
  if value then
    call('SET', KEYS[i], value, 'PX', ARGV[1])
  end
end
return {all and 'known' or 'void'}
