-- Adds the events of a batch to a stream: all of them or none, and each at most once.
-- Nothing else runs during a script, but an error does not undo what it has done. So the
-- script catches every error and removes what it added.
--
-- KEYS  1    the stream
--       2    this group_id's marker
--       3..  the markers of its origins, the group_ids the events had before
-- ARGV  1    the time to live of a marker, in milliseconds
--       2    the group_id
--       3    the length to trim the stream to, approximately; 0: no trimming
--       4    "sent TEMPLATE" or the names of the events, see markers.lua
--       5..  runs of events of the same shape: the shape (plain, key, headers or both,
--            by which of key and headers they have), the number of events, their topic,
--            and for each event its id, key (if any), payload, headers (if any). For
--            dead letters: the number of arguments of each, the number of dead letters,
--            their topic, and for each the names and values of all its fields.
--
-- Returns {"added"}; {"known"} if the events are present already; {"fenced"} if the
-- group_id is void; {"failed", POSITION, ERROR} if nothing was added. POSITION is the
-- event's, from 1, or 0 for an error of a marker.

local stream, own = KEYS[1], KEYS[2]
local window, group_id, maxlen, sent = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local present             -- by position, the events that are in the stream already
local event, added = 0, 0 -- position of the current event, number of added ones
local adding = false

local function add_run(shape, topic, from, to)
  if shape == 'plain' then
    for i = from, to, 2 do
      event = event + 1
      if not present[event] then
        call('XADD', stream, '*', 'id', ARGV[i], 'topic', topic,
          'payload', ARGV[i + 1], 'group_id', group_id)
        added = added + 1
      end
    end
  elseif shape == 'key' then
    for i = from, to, 3 do
      event = event + 1
      if not present[event] then
        call('XADD', stream, '*', 'id', ARGV[i], 'topic', topic, 'key', ARGV[i + 1],
          'payload', ARGV[i + 2], 'group_id', group_id)
        added = added + 1
      end
    end
  elseif shape == 'headers' then
    for i = from, to, 3 do
      event = event + 1
      if not present[event] then
        call('XADD', stream, '*', 'id', ARGV[i], 'topic', topic,
          'payload', ARGV[i + 1], 'headers', ARGV[i + 2], 'group_id', group_id)
        added = added + 1
      end
    end
  elseif shape == 'both' then
    for i = from, to, 4 do
      event = event + 1
      if not present[event] then
        call('XADD', stream, '*', 'id', ARGV[i], 'topic', topic, 'key', ARGV[i + 1],
          'payload', ARGV[i + 2], 'headers', ARGV[i + 3], 'group_id', group_id)
        added = added + 1
      end
    end
  else
    local each = tonumber(shape)
    for i = from, to, each do
      event = event + 1
      if not present[event] then
        call('XADD', stream, '*', unpack(ARGV, i, i + each - 1))
        added = added + 1
      end
    end
  end
end

local function mark(key, value)
  call('SET', key, value, 'PX', window)
end

local function send()
  local markers = call('MGET', unpack(KEYS, 2))
  if is_void(markers[1]) then
    return 'fenced'
  end
  local all, value
  all, value, present = compare(markers, sent)
  if all then
    -- Later batches may have this group_id as an origin. A marker that has this value is
    -- written again: WAIT waits only for a connection that wrote (Redis 7.2 and later).
    mark(own, value)
    return 'known'
  end

  -- Void the origins, so that a former owner of one, which lost its lease, cannot add
  -- the events again. These markers stay if the script fails below:
  -- - No event is lost, because "void" does not prove that events are present. This
  --   batch and its later parts ignore void origins and add their events.
  -- - No event is added twice, because a fenced owner adds nothing.
  -- - "void" replaces what an origin sent under another template. At worst a part that
  --   still uses that template adds its events again.
  for i = 3, #KEYS do
    mark(KEYS[i], void(markers[i - 1]))
  end

  adding = true
  local width = {plain = 2, key = 3, headers = 3, both = 4}
  local at = 5
  while at < #ARGV do
    local shape, count, topic = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
    local from = at + 3
    at = from + count * (width[shape] or tonumber(shape))
    add_run(shape, topic, from, at - 1)
  end
  adding = false

  -- Last, because after an error above "sent" would be false, and the next attempt
  -- would lose the events.
  mark(own, value)
  return 'added'
end

local ok, answer = pcall(send)
if ok then
  if answer == 'added' and maxlen ~= '0' then
    redis.pcall('XTRIM', stream, 'MAXLEN', '~', maxlen) -- if it fails, the next batch trims
  end
  return {answer}
end

-- Nothing else ran, so the stream's last entries are the added ones. A stream that did
-- not exist before remains, empty.
local function undo()
  for _, entry in ipairs(call('XREVRANGE', stream, '+', '-', 'COUNT', added)) do
    call('XDEL', stream, entry[1])
  end
end

local function text(err)
  return type(err) == 'table' and err.err or err
end

local message, position = text(answer), adding and event or 0
if added > 0 then
  local done, err = pcall(undo)
  if not done then
    message = message .. '; events added before remain: ' .. text(err)
  end
end
return {'failed', position, message}
