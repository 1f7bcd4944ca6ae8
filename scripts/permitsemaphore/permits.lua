-- permitsemaphore/permits: a pool of free permits, and the leases of those that are taken.
--
-- Free and taken permits together are the maximum, at the end of every script. A permit whose lease has ended counts as taken until an
-- acquisition collects it. A pool that is gone has lost its permits too: what is left of their leases is dropped when a pool comes again.
--
-- uses     clock
-- KEYS[4]  leases: sorted set of ids of 16 bytes, each with the server's time at which its lease ends, ms
-- defines  never, taken(ids, at), lease(ids, ending), drop(list)

-- never is Redisson's end of a lease that does not end.
local never = 922337203685477

-- each runs through ids that stand one behind the other.
local function each(ids)
  local i = -15
  return function()
    i = i + 16
    if i <= #ids then
      return string.sub(ids, i, i + 15)
    end
  end
end

-- taken lists those of ids whose permits are taken, and tells how many of them have a lease that lasts beyond at.
local function taken(ids, at)
  local list, live = {}, 0
  for id in each(ids) do
    local score = redis.call('zscore', KEYS[4], id)
    if score then
      list[#list + 1] = id
      live = live + (tonumber(score) > at and 1 or 0)
    end
  end
  return list, live
end

-- lease has the permits of ids taken until ending.
local function lease(ids, ending)
  for id in each(ids) do
    redis.call('zadd', KEYS[4], ending, id)
  end
end

-- drop takes listed ids out.
local function drop(list)
  for _, id in ipairs(list) do
    redis.call('zrem', KEYS[4], id)
  end
end
