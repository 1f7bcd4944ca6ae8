-- permitsemaphore/leases: the leases of acquired permits.
--
-- Free and acquired permits together are the maximum, at the end of every script. A permit whose
-- lease has expired counts as acquired until an acquisition collects it. When the key of free
-- permits is gone, its acquired permits are lost too: the next script that sets that key deletes
-- the leases.
--
-- The leases are a sorted set of ids of 16 bytes each, scored by the server time at which each
-- lease ends, ms. Several ids are passed as one string.
-- defines  never_ends, acquired_permits(leases, ids, now), set_leases(leases, ids, ends_at),
--          extend_leases(leases, ids, ends_at), shorten_leases(leases, list, ends_at),
--          remove_leases(leases, list)

-- never_ends is Redisson's score of a lease that does not end.
local never_ends = 922337203685477

-- each_id iterates over the ids in a string.
local function each_id(ids)
  local i = -15
  return function()
    i = i + 16
    if i <= #ids then
      return string.sub(ids, i, i + 15)
    end
  end
end

-- acquired_permits returns a list of those ids that have a lease, and how many of these leases last
-- beyond now.
local function acquired_permits(leases, ids, now)
  local list, live = {}, 0
  for id in each_id(ids) do
    local score = redis.call('zscore', leases, id)
    if score then
      list[#list + 1] = id
      live = live + (tonumber(score) > now and 1 or 0)
    end
  end
  return list, live
end

-- set_leases gives all ids a lease that ends at ends_at.
local function set_leases(leases, ids, ends_at)
  for id in each_id(ids) do
    redis.call('zadd', leases, ends_at, id)
  end
end

-- extend_leases makes sure that the leases of all ids, which have one, end no earlier than ends_at.
local function extend_leases(leases, ids, ends_at)
  for id in each_id(ids) do
    if tonumber(redis.call('zscore', leases, id)) < ends_at then
      redis.call('zadd', leases, ends_at, id)
    end
  end
end

-- shorten_leases makes sure that the leases of a list of ids, which have one, end no later than
-- ends_at.
local function shorten_leases(leases, list, ends_at)
  for _, id in ipairs(list) do
    if tonumber(redis.call('zscore', leases, id)) > ends_at then
      redis.call('zadd', leases, ends_at, id)
    end
  end
end

-- remove_leases removes the leases of a list of ids.
local function remove_leases(leases, list)
  for _, id in ipairs(list) do
    redis.call('zrem', leases, id)
  end
end
