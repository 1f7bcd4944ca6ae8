-- lib/notify_free: tell the waiters that the lock is free, or that its TTL became shorter.
-- Fair locks have their own version.
--
-- The first client in line gets a message on its own channel. The listeners get a message that it
-- is the turn of that client. Then comes the message in Redisson's format, for all clients that
-- listen on the common channel.
-- uses     lib/line
-- defines  notify_free(keys, publish, own_place, is_line_empty): how many clients received a
--          message, nil if that is not known. keys are the KEYS of the calling script; KEYS[2] of
--          every lock's script is its channel, and KEYS[5] the line. own_place is the place of the
--          client that frees the lock, nil if it has none;
--          notify_rest(keys, publish): the lock stays taken, with a shorter TTL. All waiters try,
--          and learn that; the result is the same

-- read_line returns the first places of the line, except own_place. It also returns which of all
-- places belong to listeners, and how many listeners there are.
local function read_line(line, own_place)
  local members = redis.pcall('zrange', line, 0, 20) -- at most 2 or 3 listeners, which come first
  local places, listens, listeners = {}, {}, 0
  for _, member in ipairs(members) do
    if string.sub(member, 1, 1) == '*' then
      listens[string.sub(member, 2)] = true
      listeners = listeners + 1
    elseif member ~= own_place then
      places[#places + 1] = member
    end
  end
  return places, listens, listeners
end

-- wake_first wakes the first client in line. It returns 1. It returns 0 if it woke no client, or if
-- that client listens on the common channel, too. The turn of the client at own_place comes last.
local function wake_first(line, channel, publish, own_place)
  local places, listens, listeners = read_line(line, own_place)
  if #places == 0 or (#places == 1 and listens[places[1]]) then
    return 0 -- the message on the common channel is enough
  end
  -- tell returns nil if the user may not publish there. It drops a place without a receiver.
  local function tell(place, payload)
    local heard = redis.pcall(publish, channel .. ':' .. place, payload)
    if type(heard) ~= 'number' then
      return nil
    end
    if heard == 0 then
      give_up_place(line, place)
      if listens[place] then
        listens[place], listeners = nil, listeners - 1
      end
    end
    return heard > 0
  end

  local woken
  for _, place in ipairs(places) do
    local heard = tell(place, '0')
    if heard then
      woken = place
    end
    if heard ~= false then
      break
    end
  end
  if not woken then
    return 0
  end
  local told = listens[woken] and 0 or 1
  for place in pairs(listens) do
    if place ~= woken and place ~= own_place then
      tell(place, '1')
    end
  end
  if listeners == 0 then
    local last = redis.call('zrange', line, -1, -1)[1]
    if last and last ~= woken and last ~= own_place then
      tell(last, '2')
    end
  end
  renew_place(line, woken)
  if own_place then
    renew_place(line, own_place)
  end
  return told
end

local function notify_free(keys, publish, own_place, is_line_empty)
  local channel, line = keys[2], keys[5]
  local told = is_line_empty and 0 or wake_first(line, channel, publish, own_place)
  return redis.call(publish, channel, '0') + told
end

-- Nobody publishes when the TTL ends. In Redisson '0' wakes one thread of a client. If that thread
-- gave up before the end, the other threads would sleep for the old TTL. So '1' wakes all of them.
local function notify_rest(keys, publish)
  redis.call(publish, keys[2], '1')
  return notify_free(keys, publish)
end
