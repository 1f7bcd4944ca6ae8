-- fairlock/tell: the free lock goes to the next owner. One of ours is given it at once; others are told that it is free.
-- uses     queue
-- defines  pass(command, again, mine), tell(command), withdraw(id, command)

local function grant(id, ttl)
  redis.call('hset', KEYS[1], id, 1)
  redis.call('pexpire', KEYS[1], ttl)
end

-- word is what one must know who was granted the lock. Who asks for mine is answered, other clients are told.
local function word(command, mine, id, client, since, ttl)
  local text = id .. ' ' .. since .. ' ' .. ttl
  if client == mine then
    return text
  end
  redis.call(command, KEYS[2] .. ':' .. client, text)
end

-- stampHead sees that the new head of a queue of ours alone is not dropped too soon: it may have waited for half of what its score allowed.
local function stampHead(at, id, mine)
  local wait, _, _, since = parse(mine)
  local whole = deadline(0, wait)
  if at - (tonumber(since) or 0) > whole / 2 then
    local highest = redis.call('zrange', KEYS[5], -1, -1, 'withscores')[2]
    redis.call('zadd', KEYS[5], math.min(at + whole, tonumber(highest)), id)
  end
end

-- passOn grants the lock to the first of a queue of ours alone, and sees that the second has its time as the head. False: it takes more than that.
local function passOn(first, second, command, mine)
  local ours = redis.call('hmget', KEYS[6], first, second or first)
  local wait, client, ttl, since = parse(ours[1])
  if not (ttl and ours[2]) then
    return false
  end
  local at = now()
  local signs = redis.call('hmget', KEYS[7], client, 'shared')
  local left = tonumber(signs[1] or 0) + wait - at
  if left <= 0 or signs[2] then
    return false
  end
  ttl = math.min(ttl, left) -- no longer than it lives without another sign of life: a dead one costs no more than its silence
  redis.call('lpop', KEYS[4])
  redis.call('zrem', KEYS[5], first)
  redis.call('hdel', KEYS[6], first)
  grant(first, ttl)
  if second then
    redis.call('hset', KEYS[7], 'holder', first)
    stampHead(at, second, ours[2])
  else
    taken(first, ttl)
  end
  return true, word(command, mine, first, client, since, ttl)
end

-- pass gives the free lock to the next owner, if there is one. again: it may have been told before. mine: the client that is answered, not told.
-- It returns what that must know if the lock is one of its own now: the id, when that came to stand in the queue, and the ttl.
local function pass(command, again, mine)
  local two = redis.call('lrange', KEYS[4], 0, 1)
  if not two[1] then
    redis.call('del', KEYS[5], KEYS[6], KEYS[7])
    return
  end
  local done, text = passOn(two[1], two[2], command, mine)
  if done then
    return text
  end
  local at = now()
  local first, left = head(at)
  if not first then
    return
  end
  local _, client, ttl, since = patience(first)
  if not ttl then
    mark(at, not again)
    redis.call(command, KEYS[2] .. ':' .. first, '0')
    return
  end
  ttl = math.min(ttl, left)
  drop(first)
  grant(first, ttl)
  mark(at, true)
  taken(first, ttl)
  return word(command, mine, first, client, since, ttl)
end

local function tell(command)
  pass(command)
end

-- withdraw takes a waiter out of the queue, and passes on what it may have been told.
local function withdraw(id, command, mine)
  if not redis.call('zscore', KEYS[5], id) then
    return
  end
  local front = redis.call('lindex', KEYS[4], 0) == id
  drop(id)
  if front and redis.call('exists', KEYS[1]) == 0 then
    return pass(command, false, mine)
  end
  mark(now(), front)
end
