-- Adds one batch's events to one stream: all of them or none, and at most once.
-- A script runs alone, but what it did before an error stays done; so it catches
-- every error and takes back what it added.
--
-- KEYS  1    the stream
--       2    this group_id's marker
--       3..  the markers of its origins, the group_ids the events had before
-- ARGV  1    how long a marker lives, in milliseconds
--       2    the group_id
--       3    what the stream is to be trimmed to, about; 0: not at all
--       4    what a marker says of a group_id that was sent, "sent TEMPLATE", or the
--            names of the events: see markers.lua
--       5..  runs of events that are alike: which of key and headers they have
--            (plain, key, headers, both), how many they are, their topic, and for
--            each its id, key (if it has), payload, headers (if it has). Or, for
--            dead letters, how many arguments each has, how many they are, their
--            topic, and for each the names and values of all its fields.
--
-- Answers: {"added"}; {"known"}, the events are there already; {"fenced"}, this
-- group_id was given up; {"failed", at which event, from 1, or 0 where it was a
-- marker, the error}, nothing was added.

local stream, own = KEYS[1], KEYS[2]
local window, group_id, maxlen, sent = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local here                -- by position, the events that are in the stream already
local event, added = 0, 0 -- which it is the turn of, how many were added
local adding = false

local function add_run(shape, topic, from, to)
  if shape == 'plain' then
    for i = from, to, 2 do
      event = event + 1
      if not here[event] then
        call('XADD', stream, '*', 'id', ARGV[i], 'topic', topic,
          'payload', ARGV[i + 1], 'group_id', group_id)
        added = added + 1
      end
    end
  elseif shape == 'key' then
    for i = from, to, 3 do
      event = event + 1
      if not here[event] then
        call('XADD', stream, '*', 'id', ARGV[i], 'topic', topic, 'key', ARGV[i + 1],
          'payload', ARGV[i + 2], 'group_id', group_id)
        added = added + 1
      end
    end
  elseif shape == 'headers' then
    for i = from, to, 3 do
      event = event + 1
      if not here[event] then
        call('XADD', stream, '*', 'id', ARGV[i], 'topic', topic,
          'payload', ARGV[i + 1], 'headers', ARGV[i + 2], 'group_id', group_id)
        added = added + 1
      end
    end
  elseif shape == 'both' then
    for i = from, to, 4 do
      event = event + 1
      if not here[event] then
        call('XADD', stream, '*', 'id', ARGV[i], 'topic', topic, 'key', ARGV[i + 1],
          'payload', ARGV[i + 2], 'headers', ARGV[i + 3], 'group_id', group_id)
        added = added + 1
      end
    end
  else
    local each = tonumber(shape)
    for i = from, to, each do
      event = event + 1
      if not here[event] then
        call('XADD', stream, '*', unpack(ARGV, i, i + each - 1))
        added = added + 1
      end
    end
  end
end

local function mark(key, what)
  call('SET', key, what, 'PX', window)
end

local function send()
  local markers = call('MGET', unpack(KEYS, 2))
  if is_void(markers[1]) then
    return 'fenced'
  end
  local all, says
  all, says, here = weigh(markers, sent)
  if all then
    -- The own marker is for those that will have this group_id for an origin.
    if markers[1] ~= says then
      mark(own, says)
    end
    return 'known'
  end

  -- An owner of an origin that comes late, its lease long lost, must not add the
  -- events once more. These marks stay when something fails below, and rightly:
  -- that the origins were given up is a fact, whatever becomes of this call.
  -- Nothing is lost by it: "void" makes nobody believe that the events are here.
  -- This batch when it is sent again, and the parts it may be divided into, pass
  -- by void origins and add. And nothing comes twice: who is fenced adds nothing.
  -- What an origin sent under another template is forgotten by it, and nothing is
  -- lost by that either: at the worst a part that still goes by that template adds
  -- once more.
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

  -- Last: set earlier, an error above would turn "sent" into a lie, and sending
  -- again into a silent loss.
  mark(own, says)
  return 'added'
end

local ok, answer = pcall(send)
if ok then
  if answer == 'added' and maxlen ~= '0' then
    redis.pcall('XTRIM', stream, 'MAXLEN', '~', maxlen) -- else the next batch trims
  end
  return {answer}
end

-- The script ran alone, so the stream's last entries are the ones it added. If
-- there was no stream before, an empty one stays; it is of the right type.
local function take_back()
  for _, entry in ipairs(call('XREVRANGE', stream, '+', '-', 'COUNT', added)) do
    call('XDEL', stream, entry[1])
  end
end

local function text(err)
  return type(err) == 'table' and err.err or err
end

local what, position = text(answer), adding and event or 0
if added > 0 then
  local done, why = pcall(take_back)
  if not done then
    what = what .. '; what was added before stays: ' .. text(why)
  end
end
return {'failed', position, what}
