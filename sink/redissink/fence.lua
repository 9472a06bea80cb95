-- Gives a group_id up: whoever still has the batch in hand adds nothing any more.
--
-- KEYS  1    this group_id's marker at an address
--       2..  the markers of its origins
-- ARGV  1    how long a marker lives, in milliseconds
--       2    what a marker says of a group_id that was sent, "sent TEMPLATE", or the
--            names of the events: see markers.lua
--
-- Answers 1 when the events are there, else 0.

local markers = call('MGET', unpack(KEYS))
if weigh(markers, ARGV[2]) then
  return 1
end
for i = 1, #KEYS do
  if not is_void(markers[i]) then
    call('SET', KEYS[i], void(markers[i]), 'PX', ARGV[1])
  end
end
return 0
