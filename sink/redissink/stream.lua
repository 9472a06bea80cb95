-- Adds one batch's events to one stream: all of them or none, and at most once.
-- A script runs alone, but what it did before an error stays done: so every
-- command goes through pcall, and what was added is taken back here.
--
-- KEYS  1   the stream
--       2   this group_id's marker
--       3.. the markers of its origins, the group_ids the events had before
-- ARGV  1   how long a marker lives, in milliseconds
--       2   the group_id
--       3   what the stream is to be trimmed to, about; 0: not at all
--       4   one digit an event, the sum of: 1 it has a key, 2 it has headers,
--           4 its topic is given; without it the topic is the event before's
--       5.. for each event: topic (if given), id, key (if any), payload,
--           headers (if any)
--
-- A marker is "sent" when all the events that its group_id has in this stream
-- are in it, and "void" when a later owner divided the group and sends its
-- events under other group_ids.
--
-- Answers: {"added"}; {"known"}, the events are there already; {"fenced"}, this
-- group_id was given up; {"failed", position of the event or 0, the error},
-- nothing was added.

local call = redis.pcall
local stream, own = KEYS[1], KEYS[2]
local window, group_id, maxlen, shapes = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local function failed(position, reply)
  return {'failed', position, reply.err}
end

local markers = call('MGET', unpack(KEYS, 2))
if markers.err then
  return failed(0, markers)
end
if markers[1] == 'sent' then
  return {'known'}
end
if markers[1] == 'void' then
  return {'fenced'}
end
for i = 2, #markers do
  if markers[i] == 'sent' then
    -- All events of that origin are here, so these are. The own marker is for
    -- those that will have this group_id for their origin.
    local reply = call('SET', own, 'sent', 'PX', window)
    if reply.err then
      return failed(0, reply)
    end
    return {'known'}
  end
end

-- From here on an owner of an origin that comes late, its lease long lost, must
-- not add the events once more. The marks stay when something fails below, and
-- rightly: that the origins were given up is a fact, whatever becomes of this
-- call. Nothing is lost by it, for "void" makes nobody believe that the events
-- are here, neither this batch when it is sent again nor the parts it may be
-- divided into: they pass by void origins and add. And nothing comes twice, for
-- who is fenced adds nothing.
for i = 3, #KEYS do
  local reply = call('SET', KEYS[i], 'void', 'PX', window)
  if reply.err then
    return failed(0, reply)
  end
end

local added = {}

-- An emptied stream is left where there was none: it is of the right type, and
-- its last id never goes back.
local function take_back()
  for i = 1, #added do
    call('XDEL', stream, added[i])
  end
end

local byte = string.byte
local at, topic = 5, nil
for i = 1, #shapes do
  local shape = byte(shapes, i) - 48
  if shape >= 4 then
    shape = shape - 4
    topic = ARGV[at]
    at = at + 1
  end
  local reply
  if shape == 0 then
    reply = call('XADD', stream, '*', 'id', ARGV[at], 'topic', topic,
      'payload', ARGV[at + 1], 'group_id', group_id)
    at = at + 2
  elseif shape == 1 then
    reply = call('XADD', stream, '*', 'id', ARGV[at], 'topic', topic, 'key', ARGV[at + 1],
      'payload', ARGV[at + 2], 'group_id', group_id)
    at = at + 3
  elseif shape == 2 then
    reply = call('XADD', stream, '*', 'id', ARGV[at], 'topic', topic,
      'payload', ARGV[at + 1], 'headers', ARGV[at + 2], 'group_id', group_id)
    at = at + 3
  else
    reply = call('XADD', stream, '*', 'id', ARGV[at], 'topic', topic, 'key', ARGV[at + 1],
      'payload', ARGV[at + 2], 'headers', ARGV[at + 3], 'group_id', group_id)
    at = at + 4
  end
  if type(reply) == 'table' then -- an error; an id is a string
    take_back()
    return failed(i, reply)
  end
  added[i] = reply
end

-- Last: set earlier, an error above would turn "sent" into a lie, and sending
-- again into a silent loss.
local reply = call('SET', own, 'sent', 'PX', window)
if reply.err then
  take_back()
  return failed(0, reply)
end
if maxlen ~= '0' then
  call('XTRIM', stream, 'MAXLEN', '~', maxlen) -- what is not trimmed now is by the next batch
end
return {'added'}
