-- Fences a group_id: a former owner of the batch can no longer add its events.
--
-- KEYS  1    this group_id's marker at an address
--       2..  the markers of its origins
-- ARGV  1    the time to live of a marker, in milliseconds
--       2    "sent TEMPLATE" or the names of the events, see markers.lua
--
-- Returns 1 if the events are present, otherwise 0.

local markers = call('MGET', unpack(KEYS))
if compare(markers, ARGV[2]) then
  return 1
end
for i = 1, #KEYS do
  if not is_void(markers[i]) then
    call('SET', KEYS[i], void(markers[i]), 'PX', ARGV[1])
  end
end
return 0
