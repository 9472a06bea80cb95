-- Gives a group_id up: whoever still has the batch in hand adds nothing any more. The
-- markers are those of stream.lua.
--
-- KEYS  1    this group_id's marker in a stream
--       2..  the markers of its origins
-- ARGV  1    how long a marker lives, in milliseconds
--       2    what the markers of this template say when all is in the stream
--
-- Answers 1 when the events are in the stream, else 0.

local markers = redis.call('MGET', unpack(KEYS))
for i = 1, #markers do
  if markers[i] == ARGV[2] then
    return 1
  end
end
for i = 1, #KEYS do
  if not markers[i] then
    redis.call('SET', KEYS[i], 'void', 'PX', ARGV[1])
  end
end
return 0
